"""Evaluation of the global model: on sets of test and training samples, and client by client.

Sets of samples are cut into fixed batches, which are spread over the workers; their figures are
added in the order of the batches, so the result does not depend on how they were spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from raysim.config import Settings
from raysim.core.components import ask
from raysim.core.errors import RunError
from raysim.core.method import ServerState
from raysim.core.rules import Pass, samples_of
from raysim.core.scoring import AT_TEMPERATURE
from raysim.core.steps import Steps
from raysim.core.tensors.packed import PackedTensors
from raysim.driver.client_scores import (
    client_accuracies,
    client_scores,
    client_table,
    figure_names,
    joined,
    spread,
)
from raysim.driver.round_inputs import round_inputs
from raysim.driver.temperatures import RoundTemperature
from raysim.execution.base import Executor, Item, NextResult, Submit
from raysim.execution.messages import EvaluationMessage, FailedItem, Scores
from raysim.federation.evaluation_sets import (
    EVALUATION_ROWS,
    EvaluationSet,
    client_test_set,
    held_out_set,
    local_test_set,
    training_set,
)
from raysim.federation.federation import Federation, open_samples
from raysim.storage.checkpoints import Checkpoint
from raysim.storage.client_states import latest_versions
from raysim.storage.trace import Span

CLIENT_FIGURES = figure_names("client_accuracy")
TRAINED_ACCURACY = "trained_accuracy"
"""Columns of the spread of the accuracies of clients' trained models, before the aggregation."""
LOCAL_TEST, TRAIN_SET, PERSONAL = "local_test", "train_set", "personal_"
"""The sets of the clients' own test samples, and of their training samples; the prefix of sets that
are evaluated with the model that each client deploys, of methods under which these are models of
their own."""
NUMBER = -1
"""Number of the pass of a deployment: it keys random draws; passes of a round count from 0."""
Figures = dict[str, float | None]
"""Columns of `metrics.parquet`, by name."""
Values = npt.NDArray[Any]
Scored = tuple[tuple[float, ...], Values]
"""Sums of the losses of a set, and its predictions [N, ...]."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        figures: The figures of the round.
        clients: Columns [n] of `client_accuracy.parquet`: the evaluated clients, and of each kind
            of test samples of theirs how many they have, and the scores.
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
        """Accuracy of each client on its samples, those of `evaluation.clients`."""
        if "accuracy" not in self.clients:
            return {}
        values = (self.clients[name].tolist() for name in ("client", "accuracy"))
        return dict(zip(*values, strict=True))


def _sets_of(settings: Settings, federation: Federation) -> dict[str, EvaluationSet]:
    """Return the sets of the clients' samples that settings have evaluated, by name."""
    indices, holdout = federation.client_indices, federation.holdout
    sets: dict[str, EvaluationSet] = {}
    if settings.evaluation.holdout:
        sets["holdout"] = held_out_set(indices, holdout)
    if found := federation.local_test:
        sets[LOCAL_TEST] = local_test_set(found, settings.seed)
    if settings.evaluation.train_set:
        sets[TRAIN_SET] = training_set(indices, holdout)
    return sets


class Evaluator:
    """Evaluates the global model of one run.

    Attributes:
        evaluated_sets: Sets that workers evaluate besides the test set, numbered from 1.
        skipped: The evaluation of a round in which none is due; its figures are None.
    """

    def __init__(self, settings: Settings, federation: Federation, network: nn.Module) -> None:
        """Choose the samples.

        Args:
            settings: The run's settings.
            federation: Its samples and client indices.
            network: The network as it was built.

        Raises:
            SettingsError: no client has a sample to hold out.
            DataError: clients' own test samples cannot be drawn.
        """
        self._settings, self._network = settings, network
        self._method = settings.method
        self._sizes = federation.training_sizes
        self._batching = settings.local.batching
        y = {"train": open_samples(federation.train).y, "test": federation.test_targets}
        y["held_out"] = y["train"]
        evaluated_sets = _sets_of(settings, federation)
        if (found := federation.local_test) and found.samples:
            y["local"] = found.samples.y
        own_models = self._method.deploys_client_models
        if own_models:
            evaluated_sets |= {f"{PERSONAL}{name}": each for name, each in evaluated_sets.items()}
        self._client_set: EvaluationSet | None = None
        if settings.evaluation.clients:
            self._client_set = client_test_set(federation, settings)
            if federation.inputs.per_client or own_models:
                evaluated_sets["clients"] = self._client_set
        self._sets = evaluated_sets
        self.evaluated_sets = tuple(evaluated_sets.values())
        self._own_models = frozenset(
            number
            for number, name in enumerate(evaluated_sets, 1)
            if own_models and (name == "clients" or name.startswith(PERSONAL))
        )
        self._targets: dict[str, Values] = {"test": y["test"]} | {
            name: y[chosen.split][chosen.samples.indices] for name, chosen in evaluated_sets.items()
        }
        self._metrics = federation.scoring.metrics
        at_temperature = settings.temperature.varies or settings.local.temperature != 1
        self._losses = ("loss", *([AT_TEMPERATURE] if at_temperature else ()))
        self.skipped = Evaluation(dict.fromkeys(self._columns()))

    def _columns(self) -> list[str]:
        """Return the names of the figures of an evaluation."""
        columns = (*self._losses, *self._metrics)
        names = [f"{name}_{column}" for name in self._scored_sets() for column in columns]
        names += CLIENT_FIGURES if self._client_set else ()
        names += figure_names(TRAINED_ACCURACY) if self._settings.evaluation.trained else ()
        for name, metric in self._local_scores():
            names += figure_names(f"{name}_{metric}")
        return names

    def evaluate(
        self,
        executor: Executor,
        temperature: RoundTemperature,
        state: ServerState,
        committed: Checkpoint | None,
    ) -> Steps[Evaluation]:
        """Evaluate the model of a server state.

        Args:
            executor: Runs the batches.
            temperature: Temperature of the round.
            state: The server state.
            committed: The checkpoint that has the state, and with which clients deploy models of
                their own; None evaluates the global model alone.
        """
        message = self._message(temperature, state, committed)
        found, spans = yield from self._predictions(executor, message)
        figures: Figures = {}
        for name in self._scored_sets():
            (losses, predicted), targets = found[name], self._targets[name]
            for column, loss in zip(self._losses, losses, strict=True):
                figures[f"{name}_{column}"] = loss / len(targets)
            for metric, figure in self._metrics.items():
                given = predicted.copy(), targets.copy()  # a metric may change them in place
                figures[f"{name}_{metric}"] = float(figure(*given))
        tables = []
        if self._client_set:
            accuracies = client_accuracies(self._client_set, self._correct(self._client_set, found))
            figures |= spread("client_accuracy", accuracies)
            tables.append(client_table(self._client_set, "", {"accuracy": accuracies}))
        for name, metric in self._local_scores():
            samples, (_, predicted) = self._sets[name], found[name]
            values = client_scores(samples, self._metrics[metric], predicted, self._targets[name])
            figures |= spread(f"{name}_{metric}", values)
            tables.append(client_table(samples, f"{LOCAL_TEST}_", {f"{name}_{metric}": values}))
        predicted = found["test"][1] if "test" in found else self._targets["test"]
        return Evaluation(figures, joined(tables), predicted=predicted, spans=spans)

    def _correct(
        self, client_set: EvaluationSet, found: Mapping[str, Scored]
    ) -> npt.NDArray[np.bool_]:
        """Return whether each prediction of the clients' drawn test samples is right [N']."""
        if "clients" in found:
            return np.asarray(found["clients"][1] == self._targets["clients"])
        # Clients see one test set, so its predictions serve them all.
        right = found["test"][1] == self._targets["test"]
        return np.asarray(right[client_set.samples.indices])

    def deployment(self, committed: Checkpoint) -> Pass | None:
        """Return the pass by which clients make the models that they deploy, or None.

        Raises:
            SettingsError: the method's `deployment` fails, or returns something else.
        """
        if not self._own_models:
            return None
        chosen = [self.evaluated_sets[number - 1].clients for number in self._own_models]
        now = round_inputs(
            self._settings,
            self._network,
            committed,
            sizes=self._sizes,
            note=lambda text: None,
            cohort=tuple(np.unique(np.concatenate(chosen)).tolist()),
        )
        work: Pass | None = ask(
            self._method,
            "deployment",
            *(now, committed.state),
            returns=lambda work: work is None or isinstance(work, Pass),
            expected="a Pass, or None",
        )
        return work and replace(work, clients=now.cohort)

    def _message(
        self, temperature: RoundTemperature, state: ServerState, committed: Checkpoint | None
    ) -> EvaluationMessage:
        deployed = PackedTensors.of({"model": self._method.deployed(state)})
        work = self.deployment(committed) if committed else None
        own: dict[str, Any] = {}
        if committed and work:
            own = {
                "own_models": self._own_models,
                "initial_state": self._method.client_init(state),
                "versions": latest_versions(committed.versions, work.clients),
            }
        work = work or Pass((), {})
        return EvaluationMessage.of(
            replace(work, rules=temperature.rules(work.rules)),
            temperatures=temperature.of_clients(work.clients),
            loss_temperatures=(1.0, temperature.value)[: len(self._losses)],
            deployed=deployed,
            round_number=committed.number if committed else 0,
            pass_number=NUMBER,
            uniform=True,
            total_weight=0,
            **own,
        )

    def _training(self, message: EvaluationMessage, number: int, batch: int) -> float:
        """Return the samples that the clients of a batch train on before they are evaluated."""
        if number not in message.own_models:
            return 0.0
        evaluated = self.evaluated_sets[number - 1]
        first, last = evaluated.cuts[batch : batch + 2].tolist()
        clients = evaluated.clients[first:last].tolist()
        work, batching = message.work, self._batching
        own = (samples_of(work.epochs_of(c), self._sizes[[c]], batching) for c in clients)
        return float(sum(int(samples[0]) for samples in own))

    def _local_scores(self) -> list[tuple[str, str]]:
        """Return of which sets clients have scores of their own, and by which metrics."""
        metrics = ["accuracy"] if "accuracy" in self._metrics else [*self._metrics]
        sets = [name for name in (LOCAL_TEST, f"{PERSONAL}{LOCAL_TEST}") if name in self._sets]
        return [(name, metric) for name in sets for metric in metrics]

    def _scored_sets(self) -> list[str]:
        """Return the names of the sets that have a score of their own; a task may lack a test."""
        return [
            name for name, targets in self._targets.items() if name != "clients" and len(targets)
        ]

    def _predictions(
        self, executor: Executor, message: EvaluationMessage
    ) -> Steps[tuple[dict[str, Scored], dict[str, list[Span]]]]:
        """Return for each set the sums of the losses and the predictions [N, ...]; the spans."""
        rows = len(self._targets["test"])
        cuts = [*range(0, rows, EVALUATION_ROWS), rows]
        sizes = [np.diff(cuts), *(samples.batch_sizes for samples in self.evaluated_sets)]
        costs: dict[Item, float] = {
            (number, batch): float(size) + self._training(message, number, batch)
            for number, batches in enumerate(sizes)
            for batch, size in enumerate(batches)
        }
        scores: Scores = {}
        spans: dict[str, list[Span]] = {}
        failed: list[FailedItem] = []
        if not costs:
            return {}, {}
        yield Submit(executor, "evaluate", message, costs)
        results = executor.results("evaluate")
        while (result := (yield NextResult(results))) is not None:
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
            sums: tuple[float, ...] = tuple(map(sum, zip(*losses, strict=True)))
            found[name] = sums, np.concatenate(predicted)
        return found, spans
