"""Tasks: federations of a user's own arrays and module, given from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from raysim.core.client_indices import ListedIndices
from raysim.core.data import Split
from raysim.core.errors import DataError
from raysim.core.scoring import CLASSIFICATION, Scoring
from raysim.federation.federation import Federation
from raysim.federation.input_pipeline import InputPipeline

Samples = tuple[Any, Any]
"""Inputs [N, ...] and targets [N, ...], as tensors or arrays."""


@dataclass(frozen=True)
class Task:
    """A user's own task, in place of a dataset, a partition and a model.

    Targets are class numbers [N] unless the scoring says otherwise. A regression:

        def squared_error(outputs, targets):  # [B, 1], [B] -> [B]
            return (outputs[:, 0] - targets).square()

        def mae(outputs, targets):  # arrays of the whole test set
            return float(abs(outputs[:, 0] - targets).mean())

        task = raysim.Task(model, clients, test, raysim.Scoring(squared_error, {"mae": mae}))

    Its floating-point targets [N] or [N, D], as all floating-point inputs, reach model and loss in
    the type of the model's parameters: float64 where all are of that type, else float32. The run
    records `test_loss` and `test_mae` instead of `test_accuracy`; it takes no `target_accuracy`, no
    `evaluation.clients` and no `local.temperature`.

    Attributes:
        model: Builds the network; its weights as built are the first global model.
        clients: Per client, its inputs [n_k, ...] and targets [n_k, ...].
        test: The test inputs [N, ...] and targets [N, ...].
        scoring: Loss and metrics; by default cross-entropy, accuracy and macro F1.
    """

    model: Callable[[], nn.Module]
    clients: Sequence[Samples]
    test: Samples
    scoring: Scoring = CLASSIFICATION


def from_task(task: Task) -> Federation:
    """Return the federation of a user's own task.

    Raises:
        DataError: clients hold no samples, or inputs and targets do not match.
    """
    if not task.clients:
        raise DataError("Task.clients: must hold at least one client")
    read = _read_labels if task.scoring.classifies else _read_targets
    samples = [_arrays(f"client {i}", pair, read) for i, pair in enumerate(task.clients)]
    test = _arrays("Task.test", task.test, read)
    sizes = [len(y) for _, y in samples]
    cuts = np.cumsum(sizes)[:-1]
    client_indices = ListedIndices.of(np.split(np.arange(sum(sizes)), cuts))
    if len({x.shape[1:] for x, _ in samples}) > 1:
        raise DataError("Task.clients: inputs of all clients must have the same shape")
    if len({(y.shape[1:], y.dtype) for _, y in (*samples, test)}) > 1:
        raise DataError("Task.clients, Task.test: all targets must have one shape and dtype")
    if not len(test[1]):
        raise DataError("Task.test: must hold at least one sample")
    train = Split(np.concatenate([x for x, _ in samples]), np.concatenate([y for _, y in samples]))
    return Federation(
        train,
        Split(*test),
        client_indices,
        InputPipeline(),
        task.model,
        scoring=task.scoring,
    )


def _arrays(
    name: str, pair: Samples, read: Callable[[str, npt.NDArray[Any]], npt.NDArray[Any]]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    x, y = (np.asarray(values) for values in pair)
    if not y.ndim or len(x) != len(y):
        raise DataError(f"{name}: inputs {x.shape} and targets {y.shape} do not match")
    return x, read(name, y)


def _read_labels(name: str, y: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return class numbers [N] as integers."""
    labels = y.astype(np.int64)
    if y.ndim != 1 or (labels != y).any():
        raise DataError(
            f"{name}: targets {y.dtype}{[*y.shape]} are no class numbers [N]; for others give"
            " Task.scoring"
        )
    if len(y) and y.min() < 0:
        raise DataError(f"{name}: labels must be class numbers from 0 up; there is {y.min()}")
    return labels


def _read_targets(name: str, y: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return floating-point targets [N, ...] in float64, integers in int64."""
    if y.dtype.kind not in "fiub":
        raise DataError(f"{name}: targets must be numbers, not {y.dtype}")
    return y.astype(np.float64 if y.dtype.kind == "f" else np.int64)
