"""Shared samples stay as they are, whatever modules and plug-ins do with what they are given."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.samples.arrow import write_split
from raysim.samples.client_indices import ListedIndices
from raysim.testing.tasks import SmallNet, samples
from tests.faults.forked import Child
from tests.tasks import in_turn, make_settings, model_of

SIZES = (9, 20, 12, 17)


class Doubling(SmallNet):
    """A network that doubles its input, in its stages: in place or not."""

    def __init__(self, in_place: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = Double(in_place)


class Double(nn.Module):
    def __init__(self, in_place: str) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place == "unnoticed":
            x.data.mul_(2)  # of which torch's count of changes does not tell
            return x
        return x.mul_(2) if self.in_place == "always" else x * 2


def task_of(in_place: str) -> raysim.Task:
    clients = [samples(size, key) for key, size in enumerate(SIZES)]
    return raysim.Task(lambda: Doubling(in_place), clients, samples(300, 10_000))


OVERRIDES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {"local.momentum": 0.9},
    "fedmmd": {},
    "mifl": {},
    "fsvrg": {"evaluation.holdout": 0.2},
    "fedfusion": {"method.operator": "single"},
    "ditto": {"evaluation.clients": True},
}


HOW = [(0, "always"), (2, "unnoticed"), (0, "unnoticed"), (2, "always")]


@pytest.mark.parametrize(
    ("method", "stacked", "in_place"),
    [  # each method twice, in turn
        (method, *HOW[(2 * number + turn) % len(HOW)])
        for number, method in enumerate(OVERRIDES)
        for turn in range(2)
    ],
)
def test_a_model_may_change_its_input(tmp_path, method, stacked, in_place):
    overrides = {"method.name": method, "engine.vectorize": stacked, "rounds": 2}
    overrides |= {"local.epochs": 1, "checkpoint_every": 9, **OVERRIDES[method]}
    results = []
    for how in ("", in_place):
        task = task_of(how)
        before = [np.copy(x) for x, _ in (*task.clients, task.test)]
        results.append(raysim.run(make_settings(tmp_path / (how or "not"), **overrides), task))
        after = [x for x, _ in (*task.clients, task.test)]
        assert all(map(np.array_equal, before, after))
    if stacked and in_place == "unnoticed":  # it may differ in the last bits
        own, other = (result.params for result in results)
        assert all(torch.allclose(own[name], other[name], rtol=1e-4, atol=1e-6) for name in own)
        return
    assert model_of(tmp_path / "not") == model_of(tmp_path / in_place)
    first, second = (
        result.metrics.select([n for n in result.metrics.column_names if "seconds" not in n])
        for result in results
    )
    assert first.equals(second)


def test_analyses_of_a_model_that_changes_its_input(tmp_path):
    names = ("cka", "temperature", "label_information", "aggregation_drop", "activations")
    overrides = {"analysis": list(names), "evaluation.clients": True, "rounds": 2}
    for how in ("", "always"):
        settings = make_settings(tmp_path / (how or "not"), **overrides, clients=len(SIZES))
        raysim.run(settings, task_of(how))
    for name in names:
        first, second = (
            pq.read_table(tmp_path / run / "analysis" / f"{name}.parquet")
            for run in ("not", "always")
        )
        assert len(first) and first.equals(second)


def test_a_metric_may_change_its_arrays(tmp_path):
    def spoiling(predicted: Any, targets: Any) -> float:
        value = float((predicted == targets).mean())
        predicted[:], targets[:] = 0, 1
        return value

    scoring = raysim.CLASSIFICATION
    metrics = {"spoiling": spoiling, **scoring.metrics}
    mine = raysim.Scoring(scoring.losses, metrics, scoring.predict, classifies=True)
    task = task_of("")
    task = raysim.Task(task.model, task.clients, task.test, mine)
    rows = raysim.run(make_settings(tmp_path / "run", rounds=2), task).metrics.to_pylist()
    assert all(row["test_spoiling"] == row["test_accuracy"] for row in rows)


def halved(outputs: Tensor, y: Tensor) -> Tensor:
    return raysim.CLASSIFICATION.losses(outputs / 2, y.clamp(max=1))


def halved_in_place(outputs: Tensor, y: Tensor) -> Tensor:
    return raysim.CLASSIFICATION.losses(outputs.div_(2), y.clamp_(max=1))


def zeroing(outputs: Tensor, y: Tensor) -> Tensor:
    losses = halved(outputs, y)
    y.zero_()
    return losses


CHANGING = [(halved_in_place, 0), (zeroing, 0), (zeroing, 2)]


@pytest.mark.parametrize(("method", "how"), in_turn(["fedavg", "fedmmd", "ditto"], CHANGING))
def test_a_loss_may_change_what_it_is_given(tmp_path, method, how):
    losses, stacked = how
    overrides = {"method.name": method, "engine.vectorize": stacked, "rounds": 2}
    overrides |= OVERRIDES[method] | {"local.temperature": 2.0}
    results = []
    for function in (halved, losses):
        task = task_of("")
        scoring = replace(raysim.CLASSIFICATION, losses=function)
        task = raysim.Task(task.model, task.clients, task.test, scoring)
        before = [np.copy(y) for _, y in (*task.clients, task.test)]
        run = tmp_path / function.__name__
        results.append(raysim.run(make_settings(run, **overrides), task).metrics)
        after = [y for _, y in (*task.clients, task.test)]
        assert all(map(np.array_equal, before, after))
    assert model_of(tmp_path / "halved") == model_of(tmp_path / losses.__name__)
    names = [n for n in results[0].column_names if "seconds" not in n]
    assert results[0].select(names).equals(results[1].select(names))


class Mapped(raysim.Dataset):
    """Samples in a file; decoded, altered for an epoch, and compared, in place or not."""

    shape: ClassVar = (12,)
    classes: ClassVar = 3
    in_place: bool = False

    def prepare(self, root, progress):
        root.mkdir(parents=True, exist_ok=True)
        paths = {name: root / f"{name}.arrow" for name in ("train", "test")}
        for number, path in enumerate(paths.values()):
            if not path.exists():
                write_split(path, raysim.Split(*samples(60, number)))
        return paths

    def decode(self, x, *unused):
        return x.add_(1) if self.in_place else x + 1

    @property
    def scoring(self):
        losses = halved_in_place if self.in_place else halved
        return replace(raysim.CLASSIFICATION, losses=losses)

    def augment(self, x, generator):
        return x.mul_(2) if self.in_place else x * 2


class Halves(raysim.Partition):
    """Halves of the samples in the order of the file; each client sees them in its own way."""

    in_place: bool = False

    def split(self, data, clients, seed):
        return ListedIndices.of(np.split(np.arange(len(data)), clients))

    def client_view(self, x, rows, client, seed):
        if self.in_place:
            rows.fill_(0)
        return x.add_(client) if self.in_place else x + client

    def test_view(self, x, rows, clients, seed):
        return x.add_(3) if self.in_place else x + 3


class Small(raysim.Model):
    def build(self, shape, classes):
        return SmallNet(*shape)


def test_plug_ins_may_change_their_inputs(tmp_path, monkeypatch):
    """The process that writes to a mapped file ends: so it is another one than this."""
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    names = {"dataset.name": "Mapped", "partition.name": "Halves", "model.name": "Small"}
    changes = {
        **{key: f"{__name__}:{name}" for key, name in names.items()},
        **{"engine.backend": "inline", "clients": 2, "rounds": 2, "fraction": 1.0},
        **{"local.epochs": 3, "local.batch_size": 7, "target_accuracy": None},
        **{"evaluation.holdout": 0.2, "evaluation.clients": True},
    }
    for in_place in (False, True):
        own = {"dataset.in_place": in_place, "partition.in_place": in_place}
        out = str(tmp_path / str(in_place))
        chosen = raysim.load_config("mnist-fedavg", changes | own | {"out": out})
        ended = Child(partial(raysim.run, chosen)).wait()
        assert ended.code == 0, ended.errors
    assert model_of(tmp_path / "False") == model_of(tmp_path / "True")
