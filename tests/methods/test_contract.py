"""What every method must hold, run over the whole registry: a new method gets it free.

The quick part runs with the other tests. The whole matrix (every model family on one and two
actors, and resumed) is `python -m pytest -m full`.
"""

from __future__ import annotations

import inspect
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import annotated_types
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.cli.pages import allowed
from raysim.core.method import METHODS
from raysim.core.seeds import stream
from tests.conftest import SmallNet, make_settings, model_of, samples

NAMES = sorted(METHODS)
SIZES = (1, 9, 30, 17, 24, 12)  # B + 1 = 9
SETTINGS: dict[str, dict[str, Any]] = {
    "fedmax": {"method.beta": 10},
    "divide_and_conquer": {"method.split": 1},
    "fedfusion": {"method.operator": "single"},
}
"""Settings of a method where its defaults are made for larger models."""

VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fedfusion-conv": ("fedfusion", "cnn", {"method.operator": "conv"}),
    "fedfusion-multi": ("fedfusion", "residual", {"method.operator": "multi"}),
    "fedma-growing": ("fedma", "cnn", {"method.gamma": 1e30}),
    "mifl-previous": ("mifl", "mlp", {"method.mi_reference": "previous"}),
    "mifl-update-alone": ("mifl", "mlp", {"method.aggregation": False}),
    "mifl-aggregation-alone": ("mifl", "mlp", {"method.update": False}),
    "divide-and-conquer-auto": (
        "divide_and_conquer",
        "mlp",
        {"method.split": "auto", "method.prepass": 2, "method.probe": 1, "method.min_rise": 0},
    ),
}
"""Methods under other settings than those above: method, model family, settings."""

UNSUPPORTED = {("fedma", "residual")}
"""Methods and model families that do not go together; the method says so before round 1."""

MODELS_SENT = {"scaffold": 2, "momentum": 2}
"""Models that a client receives and sends in a round, where it is not one."""
COUNTED_APART = {"divide_and_conquer", "fedfusion", "fedma", "fsvrg", "mifl"}
"""Methods that send parts of a model, or more to some: their own tests count the bytes."""

every_method = pytest.mark.parametrize("method", NAMES)


class SmallCnn(nn.Module):
    """Two convolutions and two linear layers, on images of 6x6."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU()),
        )
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(6 * 9, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.features(x)))


class Residual(nn.Module):
    """A convolution with BatchNorm and a shortcut around it."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return torch.relu(x + self.inner(x))


class SmallResidual(SmallCnn):
    """A residual block with BatchNorm before the linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(Residual(), nn.MaxPool2d(2))
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(4 * 9, 8), nn.ReLU())


class LastState(nn.Module):
    """An LSTM's last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)
        return states[:, -1]


class SmallLstm(nn.Module):
    """An embedding, an LSTM and a linear layer, on words of 5 symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Embedding(7, 4)
        self.hidden = LastState()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.features(x)))


def images(count: int, key: int) -> tuple[Any, Any]:
    x, y = samples(count, key, inputs=36)
    return x.reshape(-1, 1, 6, 6), y


def words(count: int, key: int) -> tuple[Any, Any]:
    x = stream(0, "words", key).integers(0, 7, (count, 5))
    return x, x[:, -1] % 3


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], tuple[Any, Any]]]] = {
    "mlp": (SmallNet, samples),
    "cnn": (SmallCnn, images),
    "residual": (SmallResidual, images),
    "lstm": (SmallLstm, words),
}


def make_task(family: str, sizes: tuple[int, ...] = SIZES) -> raysim.Task:
    model, draw = FAMILIES[family]
    clients = [draw(size, key) for key, size in enumerate(sizes)]
    return raysim.Task(model=model, clients=clients, test=draw(200, 10_000))


def settings_for(method: str, out: Path, **overrides: Any) -> raysim.Settings:
    few = {"rounds": 2, "local.epochs": 1, "method.name": method, **SETTINGS.get(method, {})}
    return make_settings(out, **few | overrides)


@every_method
@pytest.mark.parametrize("family", FAMILIES)
def test_trains_each_family_with_clients_of_one_sample(tmp_path, method, family):
    settings = settings_for(method, tmp_path / "run", fraction=1.0)
    if (method, family) in UNSUPPORTED:
        with pytest.raises(raysim.RaysimError, match=rf"method.name={method}: "):
            raysim.run(settings, make_task(family))
        assert not (tmp_path / "run").exists()
        return
    result = raysim.run(settings, make_task(family))
    assert all(tensor.isfinite().all() for tensor in result.params.values())
    rows = result.metrics.to_pylist()
    assert [row["round"] for row in rows if row["round"] > 0] == [1, 2]
    assert all(math.isfinite(row["train_loss"]) for row in rows)


@every_method
def test_loss_falls_and_accuracy_rises_on_separable_data(tmp_path, method):
    task = make_task("mlp", (40,) * 6)
    settings = settings_for(method, tmp_path, rounds=12, fraction=0.5, **{"local.epochs": 3})
    rows = raysim.run(settings, task).metrics.to_pylist()
    rows = [row for row in rows if row["round"] > 0]
    assert rows[-1]["test_loss"] < rows[0]["test_loss"]
    assert rows[-1]["test_accuracy"] > max(rows[0]["test_accuracy"], 0.6)


@every_method
def test_same_bits_and_bytes_on_two_actors(tmp_path, shared_ray, method):
    task = make_task("mlp")
    rows = {}
    for backend in ("inline", "ray"):
        overrides = {"engine.backend": backend, "engine.actors": 2, "rounds": 3}
        settings = settings_for(method, tmp_path / backend, **overrides)
        rows[backend] = raysim.run(settings, task).metrics.to_pylist()
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "ray")
    for one, other in zip(rows["inline"], rows["ray"], strict=True):
        timed = {name for name in one if name.endswith("seconds")}
        assert {k: v for k, v in one.items() if k not in timed} == {
            k: v for k, v in other.items() if k not in timed
        }


class StopAfter(raysim.Listener):
    """Interrupts the run after a round."""

    def __init__(self, number: int) -> None:
        self._number = number

    def round_done(self, row: Any) -> None:
        if row["round"] == self._number:
            raise KeyboardInterrupt


def assert_resumes(
    tmp_path: Path, method: str, family: str, stop: int = 3, **overrides: Any
) -> None:
    """A run that loses the checkpoint of its last round goes back to the one before."""
    task = make_task(family)
    straight = settings_for(method, tmp_path / "straight", rounds=4, **overrides)
    whole = raysim.run(straight, task)
    broken = settings_for(method, tmp_path / "broken", rounds=4, checkpoint_every=1, **overrides)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(broken, task, StopAfter(stop))
    checkpoints = tmp_path / "broken/checkpoints"
    assert {path.name for path in checkpoints.iterdir()} == {
        f"round_{number:06d}" for number in (stop - 1, stop)
    }
    shutil.rmtree(checkpoints / f"round_{stop:06d}")  # as if killed before it wrote this
    result = raysim.resume(tmp_path / "broken", task)
    assert model_of(tmp_path / "straight") == model_of(tmp_path / "broken")
    assert result.metrics["round"].to_pylist() == whole.metrics["round"].to_pylist()


@every_method
def test_resumed_run_has_the_same_bits(tmp_path, method):
    assert_resumes(tmp_path, method, "mlp")


@pytest.mark.parametrize("variant", VARIANTS)
def test_resumed_variant_has_the_same_bits(tmp_path, variant):
    method, family, overrides = VARIANTS[variant]
    assert_resumes(tmp_path, method, family, **overrides)


def test_resumed_in_the_warm_up(tmp_path):
    method, family, overrides = VARIANTS["divide-and-conquer-auto"]
    assert_resumes(tmp_path, method, family, stop=-1, **overrides)


@pytest.mark.parametrize("method", [name for name in NAMES if name not in COUNTED_APART])
def test_models_travel_up_and_down(tmp_path, method):
    result = raysim.run(settings_for(method, tmp_path, fraction=1.0), make_task("mlp"))
    model = sum(4 * tensor.numel() for tensor in result.params.values())
    sent = len(SIZES) * model * MODELS_SENT.get(method, 1)
    assert result.metrics["bytes_up"].to_pylist() == [sent] * 2
    assert result.metrics["bytes_down"].to_pylist() == [sent] * 2


@every_method
def test_bad_settings_are_refused_with_their_name(tmp_path, method):
    fields = METHODS.get(method).model_fields
    for name, field in fields.items():
        for limit in field.metadata:
            bad = {
                annotated_types.Ge: lambda limit: limit.ge - 1,
                annotated_types.Gt: lambda limit: limit.gt,
                annotated_types.Le: lambda limit: limit.le + 1,
                annotated_types.Lt: lambda limit: limit.lt,
            }[type(limit)](limit)
            with pytest.raises(raysim.RaysimError, match=rf"^method\.{name}={bad}"):
                settings_for(method, tmp_path, **{f"method.{name}": bad})
    with pytest.raises(raysim.RaysimError, match=r"^method\.no_such: no such setting"):
        settings_for(method, tmp_path, **{"method.no_such": 1})


@every_method
def test_its_page_says_what_a_user_must_know(method):
    kind = METHODS.get(method)
    about = (inspect.getdoc(kind) or "").lower()
    assert "help" in about and ("cost" in about or "against fedavg" in about)
    assert "Source: " in (inspect.getdoc(inspect.getmodule(kind)) or "")
    for name, field in kind.model_fields.items():
        assert allowed(field) and field.description, name


@every_method
def test_a_row_per_client_and_pass(tmp_path, method):
    result = raysim.run(settings_for(method, tmp_path), make_task("mlp"))
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    keys = [(row["round"], row["pass"], row["client"]) for row in rows]
    assert len(set(keys)) == len(keys)
    for row in result.metrics.to_pylist():
        trained = {r["client"] for r in rows if r["round"] == row["round"] and r["steps"] > 0}
        assert len(trained) == row["clients"]


def assert_same_on_actors(
    tmp_path: Path, method: str, family: str, actors: int, **overrides: Any
) -> None:
    for backend in ("inline", "ray"):
        engine = {"engine.backend": backend, "engine.actors": actors, "rounds": 3}
        settings = settings_for(method, tmp_path / backend, **engine, **overrides)
        raysim.run(settings, make_task(family))
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "ray")


@pytest.mark.full
@every_method
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("actors", [1, 2])
def test_full_same_bits_on_actors(tmp_path, shared_ray, method, family, actors):
    if (method, family) not in UNSUPPORTED:
        assert_same_on_actors(tmp_path, method, family, actors)


@pytest.mark.full
@pytest.mark.parametrize("variant", VARIANTS)
def test_full_variant_has_the_same_bits_on_actors(tmp_path, shared_ray, variant):
    method, family, overrides = VARIANTS[variant]
    assert_same_on_actors(tmp_path, method, family, 2, **overrides)


@pytest.mark.full
@every_method
@pytest.mark.parametrize("family", FAMILIES)
def test_full_resume(tmp_path, method, family):
    if (method, family) not in UNSUPPORTED:
        assert_resumes(tmp_path, method, family)
