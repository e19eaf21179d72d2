"""Figures of evaluations against those of the deployed model, computed apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import raysim
from raysim.api.scoring import CLIENT_ACCURACY, macro_f1
from raysim.driver.evaluation.client_scores import spread_columns
from raysim.execution.base import InlineExecutor
from raysim.execution.messages import FailedItem
from raysim.federation import evaluation_sets
from raysim.federation.evaluation_sets import drawn_test_set, held_out_set, training_set
from raysim.samples.client_indices import Holdout, ListedIndices, class_counts, client_test_indices
from raysim.testing.tasks import SmallNet, samples
from tests.tasks import UNEQUAL, make_settings, make_task

CLIENT_FIGURES = [column.name for column in spread_columns(CLIENT_ACCURACY)]
ALL = {"evaluation.holdout": 0.2, "evaluation.train_set": True, "evaluation.clients": True}
TEST_COLUMNS = {"test_loss", "test_accuracy", "test_macro_f1"}
HOLDOUT_COLUMNS = {"holdout_loss", "holdout_accuracy", "holdout_macro_f1"}
TRAIN_SET_COLUMNS = {"train_set_loss", "train_set_accuracy", "train_set_macro_f1"}


class Plain(raysim.Partition):
    """Unequal pieces of the samples as they come."""

    def split(self, data: raysim.Split, clients: int, seed: int) -> ListedIndices:
        cuts = 4000 * np.arange(1, clients) ** 2 // clients**2
        return ListedIndices.of(np.split(np.arange(4000), cuts))


class Mirrored(Plain):
    """Pieces whose inputs are scaled per client, every third one mirrored."""

    def client_view(
        self, x: torch.Tensor, rows: torch.Tensor, client: int, seed: int
    ) -> torch.Tensor:
        signs = torch.where(torch.arange(len(rows)) % 3 == 0, -1.0, 1.0)
        return x * (client + 1) * signs[:, None]


class Stacked(Plain):
    """Shows test samples one by one, of which there must be some."""

    def test_view(self, x: torch.Tensor, rows: torch.Tensor, clients: int, seed: int) -> Any:
        return torch.stack([*x])


def settings_of(folder: Path, partition: str, **overrides: Any) -> raysim.Settings:
    here = f"{__name__}:"
    parts = {"dataset.name": "tests.blobs:Blobs", "partition.name": here + partition}
    parts |= {"model.name": "tests.blobs:Linear", "clients": 6}
    return make_settings(folder, **parts, **overrides)


@pytest.fixture(autouse=True)
def data_root(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path_factory.mktemp("data")))


def logits_of(params: Any, x: Any) -> torch.Tensor:
    network = SmallNet()
    network.load_state_dict(params)
    with torch.no_grad():
        return network(torch.as_tensor(x))


def right_in(params: Any, x: Any, y: Any) -> float:
    return float(np.mean(logits_of(params, x).argmax(1).numpy() == y))


def f1_by_definition(predicted: Any, labels: Any) -> float:
    """Return the mean over classes of the harmonic means of precision and recall."""
    scores = []
    for c in sorted({*predicted.tolist(), *labels.tolist()}):
        hits = int(((predicted == c) & (labels == c)).sum())
        precision = hits / max(int((predicted == c).sum()), 1)
        recall = hits / max(int((labels == c).sum()), 1)
        scores.append(statistics.harmonic_mean([precision, recall]))
    return statistics.mean(scores)


F1 = {
    # per class 2*2/(3+2), 2*1/(2+2), 2*1/(1+2)
    "three classes": ([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2], (4 / 5 + 1 / 2 + 2 / 3) / 3),
    "never predicted": ([0, 0, 0, 1], [0, 0, 0, 0], (6 / 7 + 0) / 2),
    "only predicted": ([0, 0], [0, 5], (2 / 3 + 0) / 2),
    "one of one": ([7], [7], 1.0),
    "none right": ([0, 1], [1, 0], 0.0),
}


@pytest.mark.parametrize("case", F1)
def test_macro_f1_by_hand(case):
    labels, predicted, expected = F1[case]
    found = macro_f1(np.array(predicted, np.int32), np.array(labels))
    assert found == pytest.approx(expected, abs=1e-15)


def test_macro_f1_of_a_hundred_classes():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 100, 3000) ** 2 // 100  # unequal, some of them missing
    predicted = np.where(generator.random(3000) < 0.5, labels, generator.integers(0, 101, 3000))
    found = macro_f1(predicted.astype(np.int32), labels)
    assert found == pytest.approx(f1_by_definition(predicted, labels), abs=1e-12)


def test_the_test_set_alone_is_the_default(tmp_path):
    task = make_task(UNEQUAL)
    task = raysim.Task(task.model, task.clients, samples(2500, 77))
    result = raysim.run(make_settings(tmp_path, rounds=2), task)
    x, y = task.test
    predicted = logits_of(result.params, x).argmax(1).numpy()
    last = result.metrics.to_pylist()[-1]
    assert last["test_macro_f1"] == pytest.approx(f1_by_definition(predicted, y), abs=1e-12)
    assert result.summary["final_macro_f1"] == last["test_macro_f1"] != last["test_accuracy"]
    names = {
        name for name in last if name.startswith(("test_", "holdout_", "client_", "train_set"))
    }
    assert names == TEST_COLUMNS
    assert not (tmp_path / "client_accuracy.parquet").exists()


class OneLogit(SmallNet):
    def __init__(self) -> None:
        super().__init__(classes=1)


def test_a_network_of_one_logit(tmp_path):
    task = make_task(UNEQUAL, OneLogit)
    clients, test = [(x, y // 2) for x, y in task.clients], (task.test[0], task.test[1] // 2)
    result = raysim.run(make_settings(tmp_path, **ALL), raysim.Task(OneLogit, clients, test))
    network = OneLogit()
    network.load_state_dict(result.params)
    with torch.no_grad():
        predicted = (network(torch.as_tensor(test[0])).squeeze(1) > 0).long().numpy()
    assert {*predicted} == {0, 1}
    assert result.summary["final_accuracy"] == np.mean(predicted == test[1])
    expected = f1_by_definition(predicted, test[1])
    assert result.summary["final_macro_f1"] == pytest.approx(expected, abs=1e-12)


def divided(task: raysim.Task, fraction: float) -> list[list[tuple[Any, Any]]]:
    """Return, per client, the samples that it trains on and those that it holds out."""
    holdout = Holdout(fraction, seed=0)
    return [
        [(x[positions], y[positions]) for positions in holdout.divide(client, len(y))]
        for client, (x, y) in enumerate(task.clients)
    ]


@pytest.mark.parametrize("together", [0, 3])
def test_training_with_a_holdout_is_training_without_these_samples(tmp_path, together):
    task = make_task(UNEQUAL)
    overrides = {"method.name": "scaffold", "engine.vectorize": together, "rounds": 5}
    kept = [train for train, _ in divided(task, 0.2)]
    settings = make_settings(tmp_path / "held", **overrides, **{"evaluation.holdout": 0.2})
    raysim.run(settings, task)
    without = raysim.Task(task.model, kept, task.test)
    raysim.run(make_settings(tmp_path / "without", **overrides), without)
    files = [tmp_path / name / "model.safetensors" for name in ("held", "without")]
    assert files[0].read_bytes() == files[1].read_bytes()
    tables = [
        pq.read_table(tmp_path / name / "clients.parquet").drop_columns(["seconds"])
        for name in ("held", "without")
    ]
    assert tables[0].equals(tables[1])
    assert {1, 2, 14, 19, 38, 77} == set(tables[0]["samples"].to_pylist())


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A run whose clients minimise another loss than the one that is scored, and its task."""
    task = make_task((1, 3, 3000, 17, 80, 250))  # 1500 samples of one client: two batches
    options = {
        "evaluation.holdout": 0.5,
        "evaluation.train_set": True,
        "rounds": 3,
        "fraction": 0.5,
    }
    options["local.label_smoothing"] = 0.2
    return raysim.run(make_settings(tmp_path_factory.mktemp("scored"), **options), task), task


@pytest.mark.parametrize(
    ("prefix", "part", "count"),
    [("train_set", 0, 1 + 1 + 1500 + 9 + 40 + 125), ("holdout", 1, 0 + 2 + 1500 + 8 + 40 + 125)],
)
def test_samples_of_clients_are_scored_as_the_test_set_is(scored, prefix, part, count):
    """All that clients train on, whether or not they took part, and all that they hold out."""
    result, task = scored
    pairs = [parts[part] for parts in divided(task, 0.5)]
    x, y = (np.concatenate([pair[i] for pair in pairs]) for i in (0, 1))
    assert len(y) == count
    logits = logits_of(result.params, x)
    predicted = logits.argmax(1).numpy()
    last = result.metrics.to_pylist()[-1]
    assert last[f"{prefix}_accuracy"] == np.mean(predicted == y) != last["test_accuracy"]
    loss = float(nn.functional.cross_entropy(logits, torch.as_tensor(y)))
    assert last[f"{prefix}_loss"] == pytest.approx(loss, 1e-5)
    assert last[f"{prefix}_macro_f1"] == pytest.approx(f1_by_definition(predicted, y), abs=1e-12)
    assert {f"final_{name}" for name in HOLDOUT_COLUMNS | TRAIN_SET_COLUMNS} <= set(result.summary)
    assert result.summary[f"final_{prefix}_loss"] == last[f"{prefix}_loss"]


def test_scoring_the_training_samples_changes_nothing_else(tmp_path):
    folders, tables = [tmp_path / "without", tmp_path / "with"], []
    for folder in folders:
        asked = {"evaluation.train_set": folder.name == "with"}
        metrics = raysim.run(make_settings(folder, **asked), make_task(UNEQUAL)).metrics
        tables.append(metrics)
    assert {*tables[1].column_names} - {*tables[0].column_names} == TRAIN_SET_COLUMNS
    same = [name for name in tables[0].column_names if not name.endswith("seconds")]
    assert tables[0].select(same).equals(tables[1].select(same))
    first, second = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert first == second


def expected_tests(indices: Any, train: Any, test: Any, ratio: float) -> list[Any]:
    clients = len(indices.sizes)
    drawn = client_test_indices(class_counts(indices, train, 3, np.arange(clients)), test, ratio, 0)
    return [drawn[client] for client in range(clients)]


def check_client_figures(result: raysim.Result, accuracies: list[float], sizes: list[int]) -> None:
    last = result.metrics.to_pylist()[-1]
    figures = [statistics.mean(accuracies)]
    figures += statistics.quantiles(accuracies, n=10, method="inclusive")
    assert [last[name] for name in CLIENT_FIGURES] == pytest.approx(figures, abs=1e-12)
    assert figures[5] == pytest.approx(statistics.median(accuracies), abs=1e-12)
    assert len(set(figures)) > 5
    assert all(result.summary[f"final_{name}"] == last[name] for name in CLIENT_FIGURES)
    table = pq.read_table(result.run_dir / "client_accuracy.parquet")
    assert table.to_pydict() == {
        "round": [last["round"]] * len(sizes),
        "client": list(range(len(sizes))),
        "samples": sizes,
        "accuracy": accuracies,
    }


def test_clients_are_evaluated_on_test_samples_in_their_class_proportions(tmp_path):
    # Four clients of one class each, and two of all.
    x, y = samples(900, 5)
    of_class = [np.flatnonzero(y == c) for c in (0, 1, 2)]
    rows = [*(own[:60] for own in of_class), of_class[0][60:80], *np.split(np.arange(200), 2)]
    clients = [(x[own], y[own]) for own in rows]
    test = samples(300, 6)
    settings = make_settings(tmp_path, **{"evaluation.clients": True, "local.lr": 0.01})
    result = raysim.run(settings, raysim.Task(SmallNet, clients, test))
    labels = np.concatenate([y for _, y in clients])
    cuts = np.cumsum([len(own) for own in rows])[:-1]
    whole = ListedIndices.of(np.split(np.arange(len(labels)), cuts))
    own_tests = expected_tests(whole, labels, test[1], 300 / len(labels))
    assert all(set(test[1][own]) == {c} for c, own in enumerate(own_tests[:3]))
    accuracies = [right_in(result.params, test[0][own], test[1][own]) for own in own_tests]
    check_client_figures(result, accuracies, [len(own) for own in own_tests])


@pytest.mark.parametrize("partition", ["Plain", "Mirrored"])
def test_clients_are_evaluated_through_their_own_view(tmp_path, partition):
    minimised = {"local.label_smoothing": 0.2}  # another loss than the one that is scored
    result = raysim.run(settings_of(tmp_path, partition, **ALL, **minimised))
    (x, y), (test_x, test_y) = samples(4000, 1), samples(2500, 2)
    whole = Plain().split(raysim.Split(x, y), 6, 0)

    def seen(inputs: Any, client: int) -> Any:
        signs = np.where(np.arange(len(inputs)) % 3 == 0, -1, 1)[:, None]
        return inputs / 2 * (signs * (client + 1) if partition == "Mirrored" else 1)

    own_tests = expected_tests(whole, y, test_y, 2500 / 4000)
    accuracies = [
        right_in(result.params, seen(test_x[own], client).astype(np.float32), test_y[own])
        for client, own in enumerate(own_tests)
    ]
    check_client_figures(result, accuracies, [len(own) for own in own_tests])
    holdout = Holdout(0.2, seed=0)
    last = result.metrics.to_pylist()[-1]
    for part, name in enumerate(("train_set", "holdout")):
        own_x, own_y = [], []
        for client in range(6):
            rows = whole[client]
            own = holdout.divide(client, len(rows))[part]
            own_x.append(seen(x[rows], client)[own])
            own_y.append(y[rows][own])
        inputs, targets = np.concatenate(own_x).astype(np.float32), np.concatenate(own_y)
        expected = right_in(result.params, inputs, targets)
        assert last[f"{name}_accuracy"] == pytest.approx(expected, abs=1e-12)
        logits = logits_of(result.params, inputs)
        loss = float(nn.functional.cross_entropy(logits, torch.as_tensor(targets)))
        assert last[f"{name}_loss"] == pytest.approx(loss, 1e-5)
    test_accuracy = right_in(result.params, (test_x / 2).astype(np.float32), test_y)
    assert last["test_accuracy"] == pytest.approx(test_accuracy, abs=1e-12)


def evaluated(metrics: Any) -> list[dict[str, float]]:
    names = [*TEST_COLUMNS, *HOLDOUT_COLUMNS, *TRAIN_SET_COLUMNS, *CLIENT_FIGURES]
    return metrics.select(sorted(names)).to_pylist()


@pytest.mark.parametrize(
    ("partition", "actors"),
    [pytest.param("Plain", 1, marks=pytest.mark.full), ("Mirrored", 2)],
)
def test_the_same_figures_on_any_number_of_actors(tmp_path, resident_actors, partition, actors):
    # Three batches of each set.
    overrides = {**ALL, "evaluation.holdout": 0.5, "rounds": 2}
    alone = raysim.run(settings_of(tmp_path / "inline", partition, **overrides))
    engine = {"engine.backend": "ray", "engine.actors": actors}
    result = raysim.run(settings_of(tmp_path / "actors", partition, **overrides, **engine))
    assert evaluated(result.metrics) == evaluated(alone.metrics)
    for name in ("model.safetensors", "client_accuracy.parquet"):
        assert (tmp_path / "actors" / name).read_bytes() == (
            tmp_path / "inline" / name
        ).read_bytes()


class Bomb(raysim.Listener):
    """Listener that raises when a round is committed."""

    def __init__(self, number: int) -> None:
        self._number = number

    def round_done(self, row: Mapping[str, Any]) -> None:
        if row["round"] == self._number:
            raise RuntimeError("broken")


@pytest.mark.parametrize("number", [2, 3])
def test_a_resumed_run_has_the_same_figures_and_the_file_of_its_last_round(tmp_path, number):
    task = make_task(UNEQUAL)
    straight = raysim.run(make_settings(tmp_path / "straight", **ALL), task)
    settings = make_settings(tmp_path / "broken", **ALL)
    with pytest.raises(RuntimeError, match="broken"):
        raysim.run(settings, task, Bomb(number))
    resumed = raysim.resume(tmp_path / "broken", task)
    assert evaluated(resumed.metrics) == evaluated(straight.metrics)
    figures = [{n: v for n, v in r.summary.items() if "final" in n} for r in (straight, resumed)]
    assert figures[0] == figures[1] and len(figures[0]) == 3 + 3 + 3 + 10 + 1
    tables = [pq.read_table(r.run_dir / "client_accuracy.parquet") for r in (straight, resumed)]
    assert tables[0].equals(tables[1]) and set(tables[0]["round"].to_pylist()) == {3}


def test_rounds_without_evaluation_have_the_columns_but_no_figures(tmp_path):
    settings = make_settings(tmp_path, **ALL, **{"evaluation.every": 2})
    table = raysim.run(settings, make_task(UNEQUAL)).metrics
    asked = {*TEST_COLUMNS, *HOLDOUT_COLUMNS, *TRAIN_SET_COLUMNS, *CLIENT_FIGURES}
    assert asked <= set(table.column_names)
    for row in evaluated(table.take([0])):
        assert set(row.values()) == {None}
    for row in evaluated(table.take([1, 2])):
        assert all(isinstance(value, float) for value in row.values())


def test_batches_hold_whole_clients():
    sizes = np.array([400, 400, 400, 2500, 10, 990, 1])
    held = evaluation_sets.EvaluationSet.of("held_out", np.arange(7), [np.arange(n) for n in sizes])
    assert held.cuts.tolist() == [0, 2, 3, 4, 6, 7]
    assert held.batch_sizes.tolist() == [800, 400, 2500, 1000, 1]
    per_client = [np.array([5]), np.array([], np.int64), np.array([2, 9])]
    few = evaluation_sets.EvaluationSet.of("test", np.array([3, 4, 8]), per_client)
    assert few.clients.tolist() == [3, 8] and few.samples.sizes.tolist() == [1, 2]
    assert few.samples[1].tolist() == [2, 9]


class Population:
    """A million clients of four samples, with a log of the clients asked for."""

    sizes = np.broadcast_to(np.int64(4), 1_000_000)

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __getitem__(self, client: int) -> np.ndarray:
        self.asked.append(client)
        return np.arange(client % 90, client % 90 + 4)


def test_of_many_clients_the_seed_draws_some(monkeypatch):
    monkeypatch.setattr(evaluation_sets, "MOST_CLIENTS", 50)
    population, labels = Population(), np.arange(100) % 4
    held = held_out_set(population, Holdout(0.25, seed=3))
    asked = population.asked.copy()
    own = drawn_test_set(population, labels, np.arange(20) % 4, seed=3)
    other = held_out_set(population, Holdout(0.25, seed=4))
    assert held.clients.tolist() == own.clients.tolist() == asked
    assert asked == sorted(set(asked)) and len(asked) == 50
    assert asked[-1] > 500_000 > asked[0]
    assert held.samples.sizes.tolist() == [1] * 50
    trained = training_set(population, Holdout(0.25, seed=3))
    assert trained.clients.tolist() == asked and trained.samples.sizes.tolist() == [3] * 50
    assert len(set(other.clients) & set(asked)) < 5


def run(folder: Path, task: raysim.Task, **overrides: Any) -> None:
    raysim.run(make_settings(folder, **overrides), task)


def test_refusals(tmp_path):
    with pytest.raises(raysim.SettingsError, match=r"evaluation.holdout=0.1: no client has two"):
        run(tmp_path / "run", make_task((1, 1)), **{"evaluation.holdout": 0.1})
    for value in (1.0, -0.1):
        with pytest.raises(raysim.SettingsError, match=f"evaluation.holdout={value}: must be"):
            make_settings(tmp_path, **{"evaluation.holdout": value})
    x, y = samples(40, 1)
    lacking = raysim.Task(SmallNet, [(x, y)], (x[y < 2], y[y < 2]))
    with pytest.raises(raysim.RaysimError, match=r"evaluation.clients=true: class 2: clients"):
        run(tmp_path / "run", lacking, **{"evaluation.clients": True})
    with pytest.raises(raysim.RaysimError, match=r"Task.test: must hold at least one sample"):
        run(tmp_path / "run", raysim.Task(SmallNet, [(x, y)], (x[:0], y[:0])))
    with pytest.raises(raysim.RaysimError, match=r"client 1: labels must be .* there is -1"):
        run(tmp_path / "run", raysim.Task(SmallNet, [(x, y), (x, y - 1)], (x, y)))
    assert not (tmp_path / "run").exists()


class Dying(InlineExecutor):
    """Executor whose workers die over each batch of an evaluation.

    Attributes:
        left: Results that have not been taken.
    """

    left = 0

    def results(self, call, on_done=lambda done: None):
        if call == "train":
            yield from super().results(call)
            return
        type(self).left = 3
        while self.left:
            type(self).left -= 1
            yield FailedItem((0, self.left), f"death {self.left}")


def test_where_an_evaluation_fails_nothing_is_left_for_the_next_one(tmp_path, monkeypatch):
    """A run goes on after an evaluation of an analysis that fails."""
    monkeypatch.setattr("raysim.driver.start.start.open_executor", lambda spec, *_: Dying(spec))
    with pytest.raises(raysim.RunError, match=r"^the model cannot be evaluated: death 2$"):
        raysim.run(make_settings(tmp_path, rounds=1), make_task(UNEQUAL))
    assert Dying.left == 0


def test_a_partition_shows_no_test_samples_where_there_are_none(tmp_path):
    """Its view of none of them is not asked for, with any partition and dataset."""
    given = {"rounds": 1, "evaluation.test": False, "evaluation.holdout": 0.2}
    result = raysim.run(settings_of(tmp_path / "run", "Stacked", **given))
    assert result.metrics["holdout_accuracy"].to_pylist()[-1] is not None
