"""Evaluation of the global model: on the test set, on held-out samples, and client by client.

Sets of samples are cut into fixed batches, which are spread over the workers; their figures are
added in the order of the batches, so the result does not depend on how they were spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.config import Settings
from raysim.core.data import Indices
from raysim.core.errors import RunError
from raysim.core.packed import PackedTensors
from raysim.core.tensors import Tensors
from raysim.execution.base import Executor, FailedItem, Item
from raysim.execution.messages import Scores
from raysim.federation.evaluation_sets import (
    EVALUATION_ROWS,
    EvaluationSet,
    client_test_set,
    held_out_set,
)
from raysim.federation.federation import Federation, opened
from raysim.storage.trace import Span

CLIENT_FIGURES = ("client_accuracy_mean", *(f"client_accuracy_d{tenth}" for tenth in range(1, 10)))
"""The mean over clients, and the deciles, of which d5 is the median."""
Figures = dict[str, float | None]
"""Columns of `metrics.parquet`, by name."""
Classes = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Score:
    """Figures of a set of N samples."""

    loss: float
    accuracy: float
    macro_f1: float

    @classmethod
    def of(cls, loss: float, predicted: Classes, labels: Indices) -> Score:
        """Score predicted classes [N] against labels [N], given the sum of the losses."""
        rows = len(labels)
        right = int(np.count_nonzero(predicted == labels))
        return cls(loss / rows, right / rows, macro_f1(predicted, labels))


def macro_f1(predicted: Classes, labels: Indices) -> float:
    """Return the mean of F1_c = 2 TP_c / (actual_c + predicted_c).

    The mean is over the classes c that occur among the labels [N] or the predicted classes [N];
    TP_c counts the samples of class c that were predicted as such.
    """
    classes = 1 + int(max(labels.max(), predicted.max()))
    right = labels[predicted == labels]
    both = np.bincount(labels, minlength=classes) + np.bincount(predicted, minlength=classes)
    there = both > 0
    return float(np.mean(2 * np.bincount(right, minlength=classes)[there] / both[there]))


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        figures: The figures of the round.
        clients: Where asked for, columns [n]: clients, samples in their test shares, accuracies.
        spans: Per worker, what it did when, where a trace is asked for.
    """

    figures: Figures
    clients: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    spans: Mapping[str, list[Span]] = field(default_factory=dict)


class Evaluator:
    """Evaluates the global model of one run.

    Attributes:
        sent: What workers evaluate besides the test set, in the order of their numbers.
        none: What a round without evaluation has.
    """

    def __init__(self, settings: Settings, federation: Federation) -> None:
        """Choose the samples.

        Raises:
            SettingsError: no client has a sample to hold out.
            DataError: clients' own test shares cannot be drawn.
        """
        train, test = opened(federation.train).y, opened(federation.test).y
        sent: dict[str, EvaluationSet] = {}
        if settings.evaluation.holdout:
            sent["holdout"] = held_out_set(federation.shares)
        self._own: EvaluationSet | None = None
        if settings.evaluation.clients:
            shares = federation.shares.whole
            self._own = client_test_set(shares, train, test, settings.seed)
            if federation.inputs.per_client:
                sent["clients"] = self._own
        self.sent = tuple(sent.values())
        drawn = {name: (train if s.held_out else test)[s.rows] for name, s in sent.items()}
        self._labels = {"test": test, **drawn}
        names = [f"{name}_{part.name}" for name in self._scored() for part in fields(Score)]
        names += CLIENT_FIGURES if self._own else ()
        self.none = Evaluation(dict.fromkeys(names))

    def evaluate(self, executor: Executor, deployed: Tensors) -> Evaluation:
        """Evaluate a network's tensors."""
        found, spans = self._predictions(executor, deployed)
        figures: Figures = {}
        for name in self._scored():
            score = Score.of(*found[name], self._labels[name])
            figures |= {f"{name}_{part}": value for part, value in asdict(score).items()}
        evaluation = Evaluation(figures, spans=spans)
        if self._own is None:
            return evaluation
        if "clients" in found:
            right = found["clients"][1] == self._labels["clients"]
        else:  # all see the test set alike, so what is right in it is so in every client's share
            right = (found["test"][1] == self._labels["test"])[self._own.rows]
        return _with_clients(evaluation, self._own, right)

    def _scored(self) -> list[str]:
        """Return the names of the sets that have a score of their own."""
        return [name for name in self._labels if name != "clients"]

    def _predictions(
        self, executor: Executor, deployed: Tensors
    ) -> tuple[dict[str, tuple[float, Classes]], dict[str, list[Span]]]:
        """Return for each set the sum of the losses and the predicted classes [N]; the spans."""
        rows = len(self._labels["test"])
        cuts = [*range(0, rows, EVALUATION_ROWS), rows]
        sizes = [np.diff(cuts), *(samples.batch_sizes for samples in self.sent)]
        costs: dict[Item, float] = {
            (number, batch): float(size)
            for number, batches in enumerate(sizes)
            for batch, size in enumerate(batches)
        }
        scores: Scores = {}
        spans: dict[str, list[Span]] = {}
        for part in executor.map("evaluate", PackedTensors.of_tensors(deployed), costs, _ignore):
            if isinstance(part, FailedItem):
                raise RunError(f"the model cannot be evaluated: {part.cause}")
            scores |= part.scores
            spans.setdefault(part.worker, []).extend(part.spans)
        found = {}
        for number, name in enumerate(self._labels):
            losses, predicted = zip(
                *(scores[number, batch] for batch in range(len(sizes[number]))), strict=True
            )
            found[name] = sum(losses), np.concatenate(predicted)
        return found, spans


def _with_clients(
    found: Evaluation, own: EvaluationSet, right: npt.NDArray[np.bool_]
) -> Evaluation:
    """Add the figures of single clients, given which of their samples [N'] were predicted right."""
    hits = np.add.reduceat(right, own.offsets[:-1], dtype=np.int64)
    accuracies = hits / own.sizes
    deciles = np.quantile(accuracies, np.arange(1, 10) / 10)
    values = [float(accuracies.mean()), *deciles.tolist()]
    clients = {"client": own.clients, "samples": own.sizes, "accuracy": accuracies}
    figures = {**found.figures, **dict(zip(CLIENT_FIGURES, values, strict=True))}
    return replace(found, figures=figures, clients=clients)


def _ignore(done: int) -> None:
    """Evaluation is too short to be followed."""
