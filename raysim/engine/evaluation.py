"""Evaluation of the global model on the test set, sharded over the workers.

The test set is cut into fixed batches of 1000 rows and their figures are added in batch order, so
the result does not depend on how the batches were spread.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.core.tensors import Tensors
from raysim.engine.executor import Executor, Item
from raysim.engine.transport import Wire
from raysim.engine.worker import EVALUATION_ROWS


@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy, over N samples."""

    loss: float
    accuracy: float


def _ignore(done: int) -> None:
    """Evaluation is too short to be followed."""


def evaluate(executor: Executor, deployed: Tensors, rows: int) -> Score:
    """Evaluate a network's tensors on a test set of N rows."""
    batches: dict[Item, float] = {(number,): 1.0 for number in range(-(-rows // EVALUATION_ROWS))}
    figures: dict[int, tuple[float, int]] = {}
    for part in executor.map("evaluate", Wire.of_tensors(deployed), batches, _ignore):
        figures |= part
    losses, hits = zip(*(figures[number] for number in sorted(figures)), strict=True)
    return Score(sum(losses) / rows, sum(hits) / rows)
