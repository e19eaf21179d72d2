"""Runs of small federations on the CPU and on the device, and what they must have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.testing.tasks import small_task
from raysim.training.stacked import cuda_graphs
from tests.adapters import task_for
from tests.cuda.device import CudaDevice
from tests.methods.test_contract import settings_for
from tests.tasks import Notes, make_task
from tests.training.stacked.test_trainer import Dropping

SIZES = (1, 9, 30, 17)
"""Samples of clients; with B=8: 1 to 4 steps, full and partial batches."""
FEW = (1, 9, 24)
"""Those of runs in all modes; in a stack, three steps of an epoch have two kinds of batches."""
MODES = ("alone", "stack", "graphs", "recorded")
DISTANCE = 1e-5
"""Most that parameters and losses on the device may be from the CPU's: other orders of sums."""
NEVER = 10**9
BAD_NOTES = ("engine.vectorize", "steps are not recorded", "was dropped")


@dataclass
class Outcome:
    """What a run gave, what it told, and the device on which it ran."""

    result: raysim.Result
    notes: list[str]
    """Those that say that something was not done as it should have been."""
    gpu: CudaDevice


class Runs:
    """Runs of one method and one family of models."""

    def __init__(
        self,
        folder: Path,
        patch: pytest.MonkeyPatch,
        method: str,
        family: str,
        sizes: tuple[int, ...] = SIZES,
        **own: Any,
    ) -> None:
        few = {"rounds": 2, "fraction": 1.0, "local.epochs": 2, "seed": 1, "checkpoint_every": 9}
        self._folder, self._patch, self._method, self._sizes = folder, patch, method, sizes
        dropping = family == "dropping"
        task = make_task(sizes, Dropping) if dropping else small_task(family, sizes)
        self._task = task_for(method, task)
        self._own = few | own

    def _run(self, name: str, **engine: Any) -> tuple[raysim.Result, list[str]]:
        settings = settings_for(self._method, self._folder / name, **self._own, **engine)
        return raysim.run(settings, self._task, notes := Notes()), notes.notes

    def on_cpu(self) -> raysim.Result:
        """Run on the CPU, one client at a time."""
        return self._run("cpu")[0]

    def on_gpu(self, mode: str) -> Outcome:
        """Run on the device in one of MODES; a graph takes batches of a kind from the fourth on."""
        replays = 1 if mode in ("graphs", "recorded") else NEVER
        self._patch.setattr(cuda_graphs, "MIN_REPLAYS", replays)
        stack = 0 if mode in ("alone", "recorded") else len(self._sizes)
        with CudaDevice(lines=False) as gpu:
            result, notes = self._run(
                mode, **{"engine.gpus_per_actor": 1.0, "engine.vectorize": stack}
            )
        bad = [note for note in notes if any(words in note for words in BAD_NOTES)]
        return Outcome(result, bad, gpu)


def distance(first: raysim.Result, second: raysim.Result) -> float:
    """Return the largest difference between the models of two runs."""
    assert first.params.keys() == second.params.keys()
    pairs = [(first.params[name].double(), second.params[name].double()) for name in first.params]
    return max(float((a - b).abs().max()) for a, b in pairs if a.numel())
