"""Models with dropout, BatchNorm or an LSTM train through the engine, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import raysim
from raysim.numbers.seeds import stream
from raysim.workloads.models.cnn import MnistCnn, Vgg9
from raysim.workloads.models.lstm import CharLstm
from raysim.workloads.models.resnet import ResNet18
from tests.tasks import make_settings

torch.set_num_threads(1)

SIZES = (5, 9, 7)
ACTORS = {"engine.backend": "ray", "engine.actors": 2}
# model, input shape, classes
MODELS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "mnist-cnn": (MnistCnn(), (1, 8, 8), 3),
    "vgg9": (Vgg9(), (3, 8, 8), 3),
    "char-lstm": (CharLstm(), (6,), 11),
    "resnet18": (ResNet18(), (3, 32, 32), 3),
}


def draw(name: str, count: int, key: int) -> tuple[Any, Any]:
    _, shape, classes = MODELS[name]
    generator = stream(0, "model samples", key)
    if name == "char-lstm":
        x = generator.integers(0, classes, (count, *shape))
    else:
        x = generator.normal(size=(count, *shape)).astype("float32")
    return x, generator.integers(0, classes, count)


def task_of(name: str) -> raysim.Task:
    model, shape, classes = MODELS[name]
    clients = [draw(name, size, key) for key, size in enumerate(SIZES)]
    return raysim.Task(partial(model.build, shape, classes), clients, draw(name, 20, 99))


def trained(out: Path, task: raysim.Task, **overrides: Any) -> raysim.Result:
    few = {"rounds": 1, "local.epochs": 1, "local.batch_size": 4, "fraction": 1.0}
    return raysim.run(make_settings(out, **few | overrides), task)


def bits(result: raysim.Result) -> bytes:
    return (result.run_dir / "model.safetensors").read_bytes()


@pytest.fixture(scope="session")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], raysim.Result]:
    """The inline run of a model, made once."""
    return cache(lambda name: trained(tmp_path_factory.mktemp("inline") / name, task_of(name)))


@pytest.mark.parametrize("name", MODELS)
def test_same_bits_twice(tmp_path, inline, name):
    first = inline(name)
    assert all(tensor.isfinite().all() for tensor in first.params.values())
    assert bits(trained(tmp_path, task_of(name))) == bits(first)


@pytest.mark.parametrize("name", ["mnist-cnn", "vgg9", "char-lstm"])
def test_other_bits_with_another_seed(tmp_path, inline, name):
    assert bits(trained(tmp_path, task_of(name), seed=1)) != bits(inline(name))


@pytest.mark.full
def test_batchnorm_has_the_same_bits_on_two_actors(tmp_path, resident_actors, inline):
    assert bits(trained(tmp_path, task_of("resnet18"), **ACTORS)) == bits(inline("resnet18"))


def test_batchnorm_statistics_are_trained(inline):
    params = inline("resnet18").params
    assert params["features.bn1.running_mean"].abs().max() > 0
    # Batches of 4 of 5, 9 and 7 samples, a last one of a single sample joined: 1, 2 and 2 steps.
    assert params["features.bn1.num_batches_tracked"] == 2


def fixed(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a network whose weights do not depend on the run's seed."""
    torch.manual_seed(0)
    return build()


def twins(out: Path, dropout: float, **overrides: Any) -> raysim.Result:
    """Train two clients with the same data by one step from weights that have no seed."""
    build = partial(MnistCnn(dropout=dropout).build, (1, 8, 8), 3)
    same = draw("mnist-cnn", 6, 0)
    task = raysim.Task(partial(fixed, build), [same, same], draw("mnist-cnn", 20, 99))
    return trained(out, task, **{"local.batch_size": "full"} | overrides)


def losses(result: raysim.Result) -> list[float]:
    rows = pq.read_table(result.run_dir / "clients.parquet").sort_by("client")
    return rows["train_loss"].to_pylist()


def test_masks_differ_by_client_and_by_seed(tmp_path, resident_actors):
    plain = losses(twins(tmp_path / "plain", dropout=0.0))
    assert plain == losses(twins(tmp_path / "plain1", dropout=0.0, seed=1)) == [plain[0]] * 2
    dropped = twins(tmp_path / "dropped", dropout=0.5)
    reseeded = twins(tmp_path / "reseeded", dropout=0.5, seed=1)
    assert len({plain[0], *losses(dropped), *losses(reseeded)}) == 5
    actors = twins(tmp_path / "actors", dropout=0.5, **ACTORS)
    assert losses(actors) == losses(dropped)
    assert bits(actors) == bits(dropped)
