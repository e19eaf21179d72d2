"""Evaluation of the global model: on the test set, on held-out samples, and client by client.

Sets of samples are cut into fixed batches, which are spread over the workers; their figures are
added in the order of the batches, so the result does not depend on how they were spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.config import Settings
from raysim.core.errors import RunError
from raysim.core.method import Method, ServerState
from raysim.core.tensors.packed import PackedTensors
from raysim.execution.base import Executor, Item
from raysim.execution.messages import EvaluationMessage, FailedItem, Scores
from raysim.federation.evaluation_sets import (
    EVALUATION_ROWS,
    EvaluationSet,
    client_test_set,
    held_out_set,
)
from raysim.federation.federation import Federation, open_samples
from raysim.storage.client_states import Versions, latest_versions
from raysim.storage.trace import Span

CLIENT_FIGURES = ("client_accuracy_mean", *(f"client_accuracy_d{tenth}" for tenth in range(1, 10)))
"""The mean over clients, and the deciles, of which d5 is the median."""
Figures = dict[str, float | None]
"""Columns of `metrics.parquet`, by name."""
Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        figures: The figures of the round.
        clients: Under `evaluation.clients`, columns [n]: clients, their test samples, accuracies.
        predicted: Predictions [N, ...] of the test set.
        analyses: Columns of each analysis.
        spans: Under `trace`, the spans of each worker.
    """

    figures: Figures
    clients: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    predicted: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0))
    analyses: Mapping[str, Mapping[str, npt.NDArray[Any]]] = field(default_factory=dict)
    spans: Mapping[str, list[Span]] = field(default_factory=dict)

    @property
    def accuracies(self) -> dict[int, float]:
        """Accuracy of each evaluated client."""
        if not self.clients:
            return {}
        values = (self.clients[name].tolist() for name in ("client", "accuracy"))
        return dict(zip(*values, strict=True))


class Evaluator:
    """Evaluates the global model of one run.

    Attributes:
        evaluated_sets: Sets that workers evaluate besides the test set, numbered from 1.
        skipped: The evaluation of a round in which none is due; its figures are None.
    """

    def __init__(self, settings: Settings, federation: Federation) -> None:
        """Choose the samples.

        Raises:
            SettingsError: no client has a sample to hold out.
            DataError: clients' own test samples cannot be drawn.
        """
        train, test = open_samples(federation.train).y, open_samples(federation.test).y
        indices = federation.client_indices
        evaluated_sets: dict[str, EvaluationSet] = {}
        if settings.evaluation.holdout:
            evaluated_sets["holdout"] = held_out_set(indices, federation.holdout)
        self._client_set: EvaluationSet | None = None
        if settings.evaluation.clients:
            self._client_set = client_test_set(indices, train, test, settings.seed)
            if federation.inputs.per_client or has_own_models(settings.method):
                evaluated_sets["clients"] = self._client_set
        self.evaluated_sets = tuple(evaluated_sets.values())
        self._method = settings.method
        own_models = "clients" in evaluated_sets and has_own_models(settings.method)
        self._client_models_set = len(evaluated_sets) if own_models else None
        set_targets = {
            name: (train if chosen.held_out else test)[chosen.samples.indices]
            for name, chosen in evaluated_sets.items()
        }
        self._targets: dict[str, Values] = {"test": test, **set_targets}
        self._metrics = federation.scoring.metrics
        columns = ("loss", *self._metrics)
        names = [f"{name}_{column}" for name in self._scored_sets() for column in columns]
        names += CLIENT_FIGURES if self._client_set else ()
        self.skipped = Evaluation(dict.fromkeys(names))

    def evaluate(
        self, executor: Executor, state: ServerState, latest: Versions | None
    ) -> Evaluation:
        """Evaluate the model of a server state.

        Args:
            executor: Runs the batches.
            state: The server state.
            latest: Version of each client's state [K, 3], or NEVER; None evaluates the global model
                alone, where clients deploy models of their own too.
        """
        found, spans = self._predictions(executor, self._message(state, latest))
        figures: Figures = {}
        for name in self._scored_sets():
            (loss, predicted), targets = found[name], self._targets[name]
            figures[f"{name}_loss"] = loss / len(targets)
            for metric, figure in self._metrics.items():
                figures[f"{name}_{metric}"] = float(figure(predicted, targets))
        predicted = found["test"][1] if "test" in found else self._targets["test"]
        evaluation = Evaluation(figures, predicted=predicted, spans=spans)
        if self._client_set is None:
            return evaluation
        if "clients" in found:
            correct = found["clients"][1] == self._targets["clients"]
        else:  # clients see one test set, so its predictions serve them all
            correct = (found["test"][1] == self._targets["test"])[self._client_set.samples.indices]
        return _with_client_figures(evaluation, self._client_set, correct)

    def _message(self, state: ServerState, latest: Versions | None) -> EvaluationMessage:
        deployed = PackedTensors.of({"model": self._method.deployed(state)})
        if self._client_models_set is None or self._client_set is None or latest is None:
            return EvaluationMessage(deployed, None, PackedTensors.of({}), {})
        initial = PackedTensors.of(self._method.client_init(state))
        versions = latest_versions(latest, self._client_set.clients.tolist())
        return EvaluationMessage(deployed, self._client_models_set, initial, versions)

    def _scored_sets(self) -> list[str]:
        """Return the names of the sets that have a score of their own; a task may lack a test."""
        return [
            name for name, targets in self._targets.items() if name != "clients" and len(targets)
        ]

    def _predictions(
        self, executor: Executor, message: EvaluationMessage
    ) -> tuple[dict[str, tuple[float, Values]], dict[str, list[Span]]]:
        """Return for each set the sum of the losses and the predictions [N, ...]; the spans."""
        rows = len(self._targets["test"])
        cuts = [*range(0, rows, EVALUATION_ROWS), rows]
        sizes = [np.diff(cuts), *(samples.batch_sizes for samples in self.evaluated_sets)]
        costs: dict[Item, float] = {
            (number, batch): float(size)
            for number, batches in enumerate(sizes)
            for batch, size in enumerate(batches)
        }
        scores: Scores = {}
        spans: dict[str, list[Span]] = {}
        failed: list[FailedItem] = []
        if not costs:
            return {}, {}
        executor.submit("evaluate", message, costs)
        for result in executor.results("evaluate"):
            if isinstance(result, FailedItem):
                failed.append(result)
                continue
            scores |= result.scores
            spans.setdefault(result.worker, []).extend(result.spans)
        if failed:  # only now: a run goes on without an analysis, and nothing is left for later
            raise RunError(f"the model cannot be evaluated: {failed[0].cause}")
        found = {}
        for number, name in enumerate(self._targets):
            if not len(sizes[number]):
                continue
            losses, predicted = zip(
                *(scores[number, batch] for batch in range(len(sizes[number]))), strict=True
            )
            found[name] = sum(losses), np.concatenate(predicted)
        return found, spans


def has_own_models(method: Method) -> bool:
    """Return whether clients deploy models of their own under a method."""
    return type(method).client_model is not Method.client_model


def _with_client_figures(
    found: Evaluation, client_set: EvaluationSet, correct: npt.NDArray[np.bool_]
) -> Evaluation:
    """Add the figures of single clients; `correct` [N'] is true where a prediction is."""
    sizes = client_set.samples.sizes
    correct_counts = np.add.reduceat(correct, client_set.samples.offsets[:-1], dtype=np.int64)
    accuracies = correct_counts / sizes
    deciles = np.quantile(accuracies, np.arange(1, 10) / 10)
    values = [float(accuracies.mean()), *deciles.tolist()]
    clients = {"client": client_set.clients, "samples": sizes, "accuracy": accuracies}
    figures = {**found.figures, **dict(zip(CLIENT_FIGURES, values, strict=True))}
    return replace(found, figures=figures, clients=clients)
