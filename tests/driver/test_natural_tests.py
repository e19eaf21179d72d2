"""Natural clients: the test set is that of their own samples, and so is each one's accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import raysim
from raysim.federation.evaluation_sets import drawn_test_set
from raysim.samples.arrow import write_split
from raysim.samples.client_indices import ListedIndices
from raysim.testing.tasks import samples
from raysim.tuning.tables import work
from raysim.workloads.partitions.by_key import ByKey
from tests.blobs import Blobs
from tests.driver.test_local_tests import check, logits_of
from tests.tasks import make_settings

X, Y = samples(300, len("test"))
OF = np.resize((11, 4, 2, 0, 2), 300)
"""Writers of the test samples; 1, 3, 5 and 6 have none, and 11 is no client."""


class Written(Blobs):
    """Samples of 7 writers; the test set has those of writers 0, 2, 4 and 11."""

    test_writers: ClassVar = (11, 4, 2, 0, 2)
    without: ClassVar = ()

    def prepare(self, root: Path, progress: Any) -> Mapping[str, Path]:
        root.mkdir(parents=True, exist_ok=True)
        writers = {"train": np.arange(700) % 7, "test": np.resize(self.test_writers, 300)}
        paths = {name: root / f"{type(self).__name__}-{name}.arrow" for name in writers}
        for name, writer in writers.items():
            x, y = samples(len(writer), len(name))
            kept = ~np.isin(writer, self.without)
            write_split(paths[name], raysim.Split(x[kept], y[kept], {"writer": writer[kept]}))
        return paths


class Known(Written):
    """Without the test samples of the writer that is no client."""

    without: ClassVar = (11,)


class Strangers(Written):
    """Of which no writer has a test sample."""

    test_writers: ClassVar = (9, 11)


class Seen(ByKey):
    """Shows the network the number of each test sample, as its first input."""

    def test_view(self, x: Any, rows: Any, clients: int, seed: int) -> Any:
        return torch.cat([rows[:, None].to(x.dtype) / 300, x[:, 1:]], 1)


@pytest.fixture(autouse=True)
def own_root(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))


def by_writer(folder: Path, dataset: type = Written, **options: Any) -> raysim.Settings:
    parts = {"dataset.name": f"{__name__}:{dataset.__name__}", "partition.name": "by_key"}
    parts |= {"model.name": "tests.blobs:Linear", "clients": 7}
    return make_settings(folder, **{**parts, "rounds": 1, "evaluation.clients": True, **options})


def clients_of(folder: Path) -> dict[str, list[Any]]:
    return pq.read_table(folder / "client_accuracy.parquet").to_pydict()


def right(result: raysim.Result, x: Any = X) -> Any:
    """Return whether the model is right on each test sample."""
    return logits_of(result.params, x / 2).argmax(1).numpy() == Y


def test_a_client_is_scored_on_the_test_samples_of_its_key(tmp_path):
    result = raysim.run(by_writer(tmp_path / "run"))
    pairs = [(X[k == OF] / 2, Y[k == OF]) for k in range(7)]
    check(result, "local_test", [result.params] * 7, pairs)
    found, hits = clients_of(tmp_path / "run"), right(result)
    of_clients = [float(hits[k == OF].mean()) for k in (0, 2, 4)]
    assert found["client"] == [0, 2, 4]  # the others have no sample to be scored on
    assert found["samples"] == found["local_test_samples"] == [60, 120, 60]
    assert found["accuracy"] == of_clients
    last = result.metrics.to_pylist()[-1]
    assert last["client_accuracy_mean"] == pytest.approx(np.mean(of_clients))
    assert last["test_accuracy"] == hits[OF != 11].mean()


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("limits", [{}, {"partition.limit": 5}, {"evaluation.holdout": 0.3}])
def test_the_test_set_is_that_of_the_clients_that_there_are(tmp_path, limits, asked):
    """Three of the writers, drawn by the seed; limits on training samples are none on these."""
    few = by_writer(tmp_path / "few", clients=3, **limits, **{"evaluation.clients": asked})
    result = raysim.run(few)
    train = np.arange(700) % 7
    held = few.partition.split(raysim.Split(train, train, {"writer": train}), 3, few.seed)
    chosen = [int(train[held[client][0]]) for client in range(3)]
    own = np.isin(OF, chosen)
    assert 0 < own.sum() < 240 and set(chosen) - {*OF}  # some have test samples, some none
    last = result.metrics.to_pylist()[-1]
    assert last["test_accuracy"] == right(result)[own].mean()
    loss = torch.nn.functional.cross_entropy(
        logits_of(result.params, X / 2)[own], torch.tensor(Y[own])
    )
    assert last["test_loss"] == pytest.approx(float(loss), 1e-5)
    if asked:
        sizes = {c: int((k == OF).sum()) for c, k in enumerate(chosen) if k in OF}
        found = clients_of(tmp_path / "few")
        assert dict(zip(found["client"], found["samples"], strict=True)) == sizes


def test_all_test_samples_may_be_the_test_set(tmp_path):
    result = raysim.run(by_writer(tmp_path / "run", **{"evaluation.test_samples": "all"}))
    assert result.metrics["test_accuracy"][-1].as_py() == right(result).mean()
    check(
        result, "local_test", [result.params] * 7, [(X[k == OF] / 2, Y[k == OF]) for k in range(7)]
    )
    _, y = samples(700, len("train"))
    held = ListedIndices.of([np.arange(k, 700, 7) for k in range(7)])
    drawn, hits = drawn_test_set(held, y, Y, make_settings(tmp_path).seed).samples, right(result)
    found = clients_of(tmp_path / "run")
    assert found["client"] == [*range(7)] and found["samples"] == drawn.sizes.tolist()
    assert found["accuracy"] == [float(hits[drawn[k]].mean()) for k in range(7)]


@pytest.mark.parametrize("choice", ["clients", "all"])
def test_without_test_samples_of_any_client_all_are_the_test_set(tmp_path, choice):
    options = {"evaluation.test_samples": choice}
    result = raysim.run(by_writer(tmp_path / "run", Strangers, **options))
    assert not any("local_test" in name for name in result.metrics.column_names)
    assert result.metrics["test_accuracy"][-1].as_py() == right(result).mean()
    assert len(clients_of(tmp_path / "run")["client"]) == 7  # drawn in their class proportions


def test_unasked_single_clients_are_not_evaluated(tmp_path):
    result = raysim.run(by_writer(tmp_path / "run", **{"evaluation.clients": False}))
    assert not any("local_test" in n or "client_" in n for n in result.metrics.column_names)


def test_without_evaluation_of_the_test_set_none_is_chosen(tmp_path):
    options = {"evaluation.clients": False, "evaluation.test": False, "partition.what": "far"}
    parts = {"partition.name": f"{__name__}:Wrong"}  # which would be refused
    result = raysim.run(by_writer(tmp_path / "run", **parts, **options))
    assert "test_accuracy" not in result.metrics.column_names


def test_a_partition_sees_the_numbers_of_samples_among_all(tmp_path):
    result = raysim.run(by_writer(tmp_path / "run", **{"partition.name": f"{__name__}:Seen"}))
    seen = (X / 2).copy()
    seen[:, 0] = np.arange(300) / 300
    hits = right(result, 2 * seen)[OF != 11]
    assert result.metrics["test_accuracy"][-1].as_py() == hits.mean() != right(result).mean()


def test_an_estimate_counts_the_samples_of_the_test_set(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "measure", lambda settings, size: work.Pace(step=0, evaluation=1))
    for choice, expected in (("clients", 240), ("all", 300)):
        settings = by_writer(tmp_path, rounds=3, **{"evaluation.test_samples": choice})
        own = 240  # a sample is scored again as a writer's own, and costs a third of a step
        assert work.RunCost().seconds(settings) == pytest.approx(3 * (expected + own) / 3)


@pytest.mark.usefixtures("resident_actors")
def test_actors_evaluate_the_same_samples(tmp_path):
    on_actors = {"engine.backend": "ray", "engine.actors": 2}
    tables = [
        raysim.run(by_writer(tmp_path / name, clients=5, **options)).metrics
        for name, options in (("inline", {}), ("actors", on_actors))
    ]
    names = [n for n in tables[0].column_names if "test" in n or "client_" in n]
    assert len(names) == 3 + 10 + 3 + 2 * 10  # spreads of the accuracy, and of macro F1
    assert tables[0].select(names).equals(tables[1].select(names))


def test_the_test_set_is_as_if_there_were_no_other_samples(tmp_path):
    """Analyses measure on it, too."""
    options = {"analysis": ["aggregation_drop", "cka"], "fraction": 0.7, "rounds": 2}
    tables: list[Any] = []
    for dataset in (Written, Known):
        folder = tmp_path / dataset.__name__
        metrics = raysim.run(by_writer(folder, dataset, **options)).metrics
        measured = [
            pq.read_table(folder / "analysis" / f"{n}.parquet") for n in options["analysis"]
        ]
        times = [name for name in metrics.column_names if name.endswith("seconds")]
        tables.append([metrics.drop_columns(times), *measured])
    assert all(a.equals(b) for a, b in zip(*tables, strict=True))
    assert {*tables[0][1]["client"].to_pylist()} == {0, 2, 4}


class Wrong(ByKey):
    """Gives test samples that there are not."""

    what: str = "far"

    def split_test(self, train: Any, test: Any, held: Any) -> Any:
        return {"far": [np.array([len(test)])] * 7, "few": [np.arange(3)], "word": "none"}[
            self.what
        ]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("far", "split_test returned sample 300; the test set has samples 0 to 299"),
        ("few", "split_test .*None, or 7 arrays of indices"),
        ("word", "split_test .*None, or 7 arrays of indices"),
    ],
)
def test_a_partition_that_gives_clients_no_such_samples_is_refused(tmp_path, what, message):
    own = {"partition.name": f"{__name__}:Wrong", "partition.what": what}
    with pytest.raises(raysim.RaysimError, match=message):
        raysim.run(by_writer(tmp_path / "run", **own))
