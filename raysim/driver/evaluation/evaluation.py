"""Evaluation of a run's models: on sets of test and training samples, and client by client.

The sets are cut into fixed batches, which are spread over the workers. The driver adds their
figures in the order of the batches, so the result does not depend on how they were spread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy as np
from torch import nn

from raysim.api.class_metrics import with_metrics
from raysim.api.columns import OF_ENGINE, SUCCESS, Column, Scored, by_name
from raysim.api.method import ServerState
from raysim.api.rules import Pass
from raysim.api.scoring import (
    CLIENT_ACCURACY,
    HOLDOUT,
    LOCAL_TEST,
    LOSSES,
    NEW,
    SEEN,
    TEST,
    TRAINED_ACCURACY,
    UNSEEN,
)
from raysim.config import Settings
from raysim.driver.evaluation.client_scores import (
    Table,
    are_classes,
    client_accuracies,
    client_scores,
    client_table,
    joined,
    part,
    score_of,
    spread,
    spread_columns,
)
from raysim.driver.evaluation.deployments import Deployment
from raysim.driver.evaluation.evaluated_sets import CLIENTS, TRIGGERED, EvaluatedSets
from raysim.driver.rounds.local_values import RoundValues, losses_of
from raysim.errors import RunError
from raysim.execution.base import Executor, Item
from raysim.execution.messages import EvaluationMessage, FailedItem, PassMessage, Score, Scores
from raysim.federation.evaluation_sets import EVALUATION_ROWS, EvaluationSet
from raysim.federation.federation import Federation, open_samples
from raysim.numbers.arrays import Array, Floats
from raysim.numbers.tensors.packed import PackedTensors, as_tensor
from raysim.storage.run_state import RunState
from raysim.storage.trace import Span

Figures = dict[str, float | None]
"""Columns of `metrics.parquet`, by name."""


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        figures: Figures of the round.
        clients: Columns [n] of `client_accuracy.parquet`: the evaluated clients, the number of
            their test samples of each kind, and their scores.
        predicted: Predictions [N, ...] for the test set.
        analyses: Columns of each analysis.
        spans: Spans of each worker, if the run has a trace.
    """

    figures: Figures
    clients: Mapping[str, Array] = field(default_factory=dict)
    predicted: Array = field(default_factory=lambda: np.empty(0))
    analyses: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    spans: Mapping[str, list[Span]] = field(default_factory=dict)

    @property
    def accuracies(self) -> dict[int, float]:
        """Accuracy of each client on its samples of `evaluation.clients`."""
        if "accuracy" not in self.clients:
            return {}
        values = (self.clients[name].tolist() for name in ("client", "accuracy"))
        return dict(zip(*values, strict=True))


class Evaluator:
    """Evaluates the models of one run.

    Attributes:
        evaluated_sets: Sets that workers evaluate in addition to the test set, numbered from 1.
        columns: Declared columns of the figures, by name.
        skipped: Evaluation of a round that is not evaluated; its figures are None.
        few: In a rehearsal, True: the first batch of each set stands for the whole set.
    """

    few = False

    def __init__(self, settings: Settings, federation: Federation, network: nn.Module) -> None:
        """Choose the samples.

        Args:
            settings: The run's settings.
            federation: The run's samples and client indices.
            network: The network as it was built.

        Raises:
            SettingsError: no client has a sample to hold out.
            DataError: test samples of clients cannot be drawn.
        """
        self._settings, self._network = settings, network
        self._method = settings.method
        self._sizes = federation.training_sizes
        y = {"train": open_samples(federation.train).y, "test": federation.test_targets}
        y |= {"held_out": y["train"], "cut": y["train"], "triggered": y["test"]}
        if (local_test := federation.local_test) and local_test.samples:
            y["local"] = local_test.samples.y
        self._chosen = EvaluatedSets.of(settings, federation)
        self._sets, self._client_set = {**self._chosen.sets}, self._chosen.clients
        self.evaluated_sets = tuple(self._sets.values())
        self._sets |= {scored: self._sets[same] for scored, same in self._chosen.deployed.items()}
        self._targets: dict[Scored, Array] = {TEST: y["test"]} | {
            scored: y[chosen.split][chosen.samples.indices] for scored, chosen in self._sets.items()
        }
        self._wide = settings.evaluation.local_test > 0
        self._of_outputs = settings.evaluation.metrics
        scoring = with_metrics(federation.scoring, self._of_outputs)
        self._metrics, self._scoring = scoring.metrics, scoring
        self._losses = losses_of(settings)
        self._scores = LOSSES | scoring.scores
        self.columns = by_name(self._columns())
        self.skipped = Evaluation(dict.fromkeys(self.columns))

    @property
    def held_out_samples(self) -> dict[str, int]:
        """Number of held-out samples, for `summary.json`; empty without a holdout."""
        return {"held_out_samples": len(self._targets[HOLDOUT])} if HOLDOUT in self._targets else {}

    def _score(self, scored: Scored, score: str) -> Column:
        """Return the column for a score of a set."""
        return self._scores[score].of(scored._replace(score=score))

    def _columns(self) -> Iterator[Column]:
        """Yield the columns of the figures of an evaluation."""
        scores = (*self._losses, *self._metrics)
        yield from (
            self._score(scored, loss_or_metric)
            for scored in self._scored_sets()
            for loss_or_metric in scores
        )
        if TRIGGERED in self._sets:
            yield OF_ENGINE[SUCCESS]
        if self._client_set:
            yield from spread_columns(CLIENT_ACCURACY)
        if self._settings.evaluation.trained:
            yield from spread_columns(TRAINED_ACCURACY)
        for scored, metric in self._local_scores():
            more = {"wide": self._wide, "gain": self._wide and bool(scored.model)}
            yield from spread_columns(self._score(scored, metric), **more)
            for scored_part in self._parts_of(scored):
                score = self._score(scored_part, metric)
                yield from (score, *spread_columns(score, **more))

    def evaluate(
        self,
        executor: Executor,
        values: RoundValues,
        state: ServerState,
        committed: RunState | None,
        trained: Collection[int] = (),
    ) -> Evaluation:
        """Evaluate the model of a server state.

        Args:
            executor: Runs the batches.
            values: Values of local training in the round.
            state: The server state.
            committed: The checkpoint of the state, which determines the models that clients deploy;
                None evaluates the global model alone.
            trained: The clients that took part in the round; the checkpoint's history lacks them.
        """
        made = self.deployment(committed) if committed else None
        message = self._message(values, state, committed, made)
        predictions, spans = self._predictions(executor, message, made)
        predictions |= {scored: predictions[same] for scored, same in self._chosen.deployed.items()}
        figures: Figures = {}
        for scored in self._scored_sets():
            targets = self._targets[scored]
            for column, loss in zip(self._losses, predictions[scored][0], strict=True):
                figures[self._score(scored, column).name] = loss / self._weight(targets)
            for metric, figure in self._metrics.items():
                score = score_of(metric, figure, self._given(metric, predictions[scored]), targets)
                figures[self._score(scored, metric).name] = score
        if TRIGGERED in predictions:
            predicted = predictions[TRIGGERED][1][0].copy()
            targets = self._targets[TRIGGERED].copy()
            figures[SUCCESS] = self._settings.attack.success(predicted, targets)
        tables = []
        if self._client_set:
            accuracies = self._client_accuracies(self._client_set, predictions)
            figures |= spread(CLIENT_ACCURACY, accuracies)
            tables.append(client_table(self._client_set, "", {"accuracy": accuracies}))
        times = self._times(committed, trained)
        for metric in self._metrics:
            of_clients, of_metric = self._local_figures(metric, predictions, times)
            figures |= of_metric
            tables += of_clients
        predicted = predictions[TEST][1][0] if TEST in predictions else self._targets[TEST]
        return Evaluation(figures, joined(tables), predicted=predicted, spans=spans)

    def _weight(self, targets: Array) -> float:
        """Return the number by which the sum of a set's losses is divided."""
        return self._scoring.total_weight(as_tensor(targets)) or nan

    def _given(self, metric: str, scored: Score) -> Array:
        """Return the input of a metric: what its scoring compares, or the network's outputs."""
        return scored[1][-1 if metric in self._of_outputs else 0]

    def _client_accuracies(
        self, client_set: EvaluationSet, predictions: Mapping[Scored, Score]
    ) -> Floats:
        """Return the accuracy of each client on its drawn test samples [n].

        If predictions are not classes but probabilities, say, the metric `accuracy` compares them.
        """
        if CLIENTS in predictions:
            predicted, targets = predictions[CLIENTS][1][0], self._targets[CLIENTS]
        else:  # all clients have the same model, so the predictions for the test set serve
            drawn = client_set.samples.indices
            predicted, targets = predictions[TEST][1][0][drawn], self._targets[TEST][drawn]
        if are_classes(predicted):
            return client_accuracies(client_set, np.asarray(predicted == targets))
        metric = self._metrics["accuracy"]
        return client_scores("accuracy", client_set, metric, predicted, targets)

    def _times(self, committed: RunState | None, trained: Collection[int]) -> Array:
        """Return the number of rounds in which each client has taken part [K]."""
        times = np.zeros(len(self._sizes), dtype=np.int64)
        if committed:
            times += committed.history.times
            times[[*trained]] += 1
        return times

    def _local_figures(
        self, metric: str, predictions: Mapping[Scored, Score], times: Array
    ) -> tuple[list[Table], Figures]:
        """Return tables of clients' own scores by a metric, and figures of their spread.

        Args:
            metric: The metric's name.
            predictions: Predictions for each set.
            times: Rounds in which each client has taken part [K].
        """
        scores: dict[Scored, Floats] = {}
        figures: Figures = {}
        tables = []
        function = self._metrics[metric]
        for scored in self._local_sets:
            samples, targets = self._sets[scored], self._targets[scored]
            predicted = self._given(metric, predictions[scored])
            by_client = scores[scored] = client_scores(
                metric, samples, function, predicted, targets
            )
            base = scores[scored._replace(model="")] if scored.model and self._wide else None
            figures |= spread(self._score(scored, metric), by_client, wide=self._wide, base=base)
            took_part = times[samples.clients] > 0
            for part_set, clients in zip(
                self._parts_of(scored), (took_part, ~took_part), strict=False
            ):
                score, of_part = part(
                    metric, function, samples, (predicted, targets, by_client), clients
                )
                in_part = self._score(part_set, metric)
                figures[in_part.name] = score
                base_of_part = None if base is None else base[clients]
                figures |= spread(in_part, of_part, wide=True, base=base_of_part)
            columns: dict[str, Array] = {
                self._score(scored._replace(clients=""), metric).name: by_client
            }
            if self._wide:
                is_new = np.full(len(by_client), scored.clients == NEW, dtype=np.int64)
                columns |= {"participations": times[samples.clients], "is_new": is_new}
            tables.append(client_table(samples, f"{LOCAL_TEST.name}_", columns))
        return tables, figures

    def deployment(self, committed: RunState) -> Deployment | None:
        """Return the passes for deployed models; None if clients deploy the global model.

        Raises:
            SettingsError: the method's `deployment` fails, or returns something else.
        """
        numbers = [*self._chosen.own_models, *self._chosen.finetuned]
        if not numbers:
            return None
        clients = np.unique(np.concatenate([self.evaluated_sets[n - 1].clients for n in numbers]))
        return Deployment.of(
            self._settings, self._network, self._sizes, committed, clients.tolist()
        )

    def _message(
        self,
        values: RoundValues,
        state: ServerState,
        committed: RunState | None,
        made: Deployment | None,
    ) -> EvaluationMessage:
        first, *later = made.messages(values) if made and made.passes else ({},)
        deployed: dict[str, Any] = {}
        if made:
            deployed = {
                "own_models": self._chosen.own_models if made.passes else frozenset(),
                "later": tuple(PassMessage.of(**parts) for parts in later),
                "finetuning": made.tuning_message(values),
                "finetuned": self._chosen.finetuned,
            }
            if not made.passes:  # clients fine-tune the global model
                deployed["finetuned"] = dict.fromkeys(self._chosen.finetuned, 0)
        nothing = {"pass_": Pass((), {}), "uniform": True, "total_weight": 0}
        nothing |= {"round_number": committed.number if committed else 0, "pass_number": -1}
        nothing["values"] = values.of_clients(())
        return EvaluationMessage.of(
            **{**nothing, **first, **deployed},
            divisors=values.divisors(self._losses),
            outputs=bool(self._of_outputs),
            deployed=PackedTensors.of({"model": self._method.deployed(state)}),
        )

    def _training(
        self, message: EvaluationMessage, made: Deployment | None, number: int, batch: int
    ) -> float:
        """Return the number of samples that a batch's clients train on before their evaluation."""
        tuned = number in message.finetuned
        if made is None or not (tuned or number in message.own_models):
            return 0.0
        evaluated = self.evaluated_sets[number - 1]
        first, last = evaluated.cuts[batch : batch + 2].tolist()
        clients = evaluated.clients[first:last].tolist()
        return float(sum(made.samples(client, tuned=tuned) for client in clients))

    @property
    def _local_sets(self) -> list[Scored]:
        """The sets with scores of single clients; those of the global model come first."""
        return [scored for scored in self._sets if scored.samples == LOCAL_TEST.samples]

    def _local_scores(self) -> list[tuple[Scored, str]]:
        """Return the sets with scores of single clients, for each metric."""
        return [(scored, metric) for metric in self._metrics for scored in self._local_sets]

    def _parts_of(self, scored: Scored) -> tuple[Scored, ...]:
        """Return the parts of a set: the clients that took part in training, and the others."""
        if not self._wide or scored.clients:
            return ()
        return scored._replace(clients=SEEN), scored._replace(clients=UNSEEN)

    def _scored_sets(self) -> list[Scored]:
        """Return the sets with pooled scores; a task may have no test set."""
        return [
            scored
            for scored, targets in self._targets.items()
            if scored not in (CLIENTS, TRIGGERED) and len(targets)
        ]

    def _predictions(
        self, executor: Executor, message: EvaluationMessage, made: Deployment | None
    ) -> tuple[dict[Scored, Score], dict[str, list[Span]]]:
        """Return the scores of the samples of each set, and the workers' spans."""
        rows = len(self._targets[TEST])
        cuts = [*range(0, rows, EVALUATION_ROWS), rows]
        sizes = [np.diff(cuts), *(samples.batch_sizes for samples in self.evaluated_sets)]
        costs: dict[Item, float] = {
            (number, batch): float(size) + self._training(message, made, number, batch)
            for number, batches in enumerate(sizes)
            if number not in message.finetuned.values() or not number
            for batch, size in enumerate(batches[:1] if self.few else batches)
        }
        scores: Scores = {}
        spans: dict[str, list[Span]] = {}
        failed: list[FailedItem] = []
        if not costs:
            return {}, {}
        executor.submit("evaluate", message, costs)
        results = executor.results("evaluate")
        for result in results:
            if isinstance(result, FailedItem):
                failed.append(result)
                continue
            scores |= result.scores
            spans.setdefault(result.worker, []).extend(result.spans)
        if failed:  # raised last: a run may continue, so no result may be left in the executor
            raise RunError(f"the model cannot be evaluated: {failed[0].cause}")
        predictions = {}
        for number, scored in enumerate([*self._targets][: len(sizes)]):
            if not len(sizes[number]):
                continue
            batches = [scores[key] for key in sorted(scores) if key[0] == number]
            losses, parts = zip(*batches, strict=True)
            sums: tuple[float, ...] = tuple(map(sum, zip(*losses, strict=True)))
            arrays: Iterator[Array] = map(np.concatenate, zip(*parts, strict=True))
            if self.few:
                arrays = (np.resize(a, (sizes[number].sum(), *a.shape[1:])) for a in arrays)
            predictions[scored] = sums, tuple(arrays)
        return predictions, spans
