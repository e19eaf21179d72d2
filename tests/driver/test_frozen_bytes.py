"""Bytes of models with frozen parameters: those of the model without them, in every method."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import raysim
from raysim.api.method import METHODS
from raysim.api.rules import Upload
from raysim.methods.fedavg import FedAvg
from raysim.testing.tasks import SmallNet
from tests.adapters import task_for
from tests.driver.analyses.common import OF_ANY_INPUTS, tables
from tests.tasks import UNEQUAL, make_settings, make_task

LAYER, ATOMS = 4 * (12 * 12 + 12), 4 * 12
"""Bytes of the frozen layer, and of FedMA's assignment of its 12 neurons."""
OF_LAYER = re.compile(r"features\.(local\.|frozen\.)?0\.(weight|bias)$")
"""Names of the frozen layer's tensors."""
SETTINGS: dict[str, dict[str, Any]] = {
    "afl": {"fraction": 1.0},
    "chain": {"method.methods.fedprox.mu": 0.1, "method.methods.scaffold.lr_global": 0.9},
    "dp_ftrl": {"aggregation.weighting": "fixed"},
    "fedfusion": {"method.operator": "single"},
    "fedat": {"method.tiers": 2},
    "mifl": {"method.mi_reference": "previous"},
    "divide_and_conquer": {"method.split": 1},
}

SILENT = {"centralized", "local"}
"""Methods under which nobody sends."""


class Plain(SmallNet):
    """Three linear layers, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(self.first(), nn.Linear(12, 12))

    def first(self) -> nn.Module:
        return nn.Identity()


class Frozen(Plain):
    """The same behind a layer that is not trained."""

    def first(self) -> nn.Module:
        return nn.Linear(12, 12).requires_grad_(False)


class Same(Plain):
    """The same behind a layer that is not trained, and leaves its inputs as they are."""

    def first(self) -> nn.Module:
        layer = nn.utils.skip_init(nn.Linear, 12, 12).requires_grad_(False)  # draws nothing
        layer.weight.copy_(torch.eye(12))
        layer.bias.zero_()
        return nn.Sequential(layer, nn.BatchNorm1d(12, eps=0).requires_grad_(False))


class Biases(Plain):
    """The same with a layer of which the bias alone is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden[0].weight.requires_grad_(False)


class Deltas(FedAvg):
    """Sends changes, under another name than the model, and more to single clients."""

    def rules(self):
        return raysim.Rules(finish=_send_deltas)

    def server_update(self, now, state, reduced):
        model = state.groups["model"]
        return state.replace(model={n: model[n] + d for n, d in reduced.means["delta"].items()})

    def training_pass(self, now, state):
        work = super().training_pass(now, state)
        own = {client: {"mine": state.groups["model"]} for client in now.cohort}
        return raysim.Pass(work.clients, work.broadcast, work.rules, 1, now.lr, personal=own)


def _send_deltas(view, trained):
    delta = {name: tensor - view.start[name] for name, tensor in view.params.items()}
    return Upload(sums={"delta": delta}, rows={"again": view.params})


def counted(out, model, sizes=(8,) * 6, **options):
    """Return the columns of bytes, and the result."""
    settings = make_settings(
        out, **{"rounds": 2, "local.epochs": 1, "checkpoint_every": 9, **options}
    )
    result = raysim.run(settings, task_for(settings.method.title, make_task(sizes, model)))
    names = sorted(name for name in result.metrics.column_names if "bytes_" in name)
    return result.metrics.select(names).to_pylist(), result


@pytest.mark.parametrize("method", [*METHODS, "tests.driver.test_frozen_bytes:Deltas"])
def test_a_frozen_layer_adds_no_bytes(tmp_path, method):
    own = {"method.name": method, **SETTINGS.get(method, {})}
    plain, _ = counted(tmp_path / "plain", Plain, **own)
    frozen, result = counted(tmp_path / "frozen", Frozen, **own)
    if method == "fedma":  # it sorts neurons: a client takes in layer and atoms; who is new, twice
        pairs = [*zip(frozen, plain, strict=True)]
        assert [its["bytes_up"] - row["bytes_up"] for its, row in pairs] == [4 * LAYER] * 2
        more = [its["bytes_down"] - row["bytes_down"] for its, row in pairs]
        assert all(m % (LAYER + ATOMS) == 0 and 4 <= m // (LAYER + ATOMS) <= 8 for m in more)
        return
    assert frozen == plain and (frozen[0]["bytes_up"] > 0) == (method not in SILENT)
    files = [p for p in result.run_dir.rglob("*.safetensors") if p.name != "base.safetensors"]
    kept = {name for path in files for name in load_file(path)}
    assert kept and not [name for name in kept if OF_LAYER.search(name)]


@pytest.mark.parametrize(
    "options",
    [
        {"engine.vectorize": 4},
        {"analysis": OF_ANY_INPUTS, "evaluation.clients": True},
        {"on_client_error": "drop"},
    ],
    ids=["stacked", "analyses", "drop"],
)
def test_a_frozen_layer_adds_no_bytes_however_it_runs(tmp_path, options):
    expected, _ = counted(tmp_path / "plain", Plain)
    found, _ = counted(tmp_path / "run", Frozen, **options)
    assert found == expected


@pytest.mark.parametrize("options", [{}, {"engine.vectorize": 4}], ids=["alone", "stacked"])
def test_analyses_are_those_of_the_model_without_a_frozen_layer(tmp_path, options):
    """It leaves its inputs as they are."""
    chosen = {"analysis": OF_ANY_INPUTS, "evaluation.clients": True, **options}
    found = []
    for model in (Plain, Same):
        counted(tmp_path / model.__name__, model, UNEQUAL, **chosen)
        found.append(tables(tmp_path / model.__name__))
    plain, same = found
    assert {*plain} == {*OF_ANY_INPUTS} and all(plain.values())
    for name, rows in plain.items():
        assert [*map(flat, same[name])] == [pytest.approx(flat(row), abs=1e-4) for row in rows]


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with each number of a list in a column of its own."""
    lists = {key: value for key, value in row.items() if isinstance(value, list)}
    more = {f"{key} {n}": number for key, value in lists.items() for n, number in enumerate(value)}
    return {key: value for key, value in row.items() if key not in lists} | more


def test_a_layer_with_frozen_weights_has_no_divergence(tmp_path):
    """Its bias is of the layer before."""
    names = ["weight_divergence", "norm_divergence", "cka"]
    counted(tmp_path / "run", Biases, analysis=names)
    paths = {name: {row["path"] for row in rows} for name, rows in tables(tmp_path / "run").items()}
    assert paths == {name: {"features.1", "head"} for name in names}


@pytest.mark.usefixtures("resident_actors")
def test_a_frozen_layer_adds_no_bytes_on_actors(tmp_path):
    on_actors = {"engine.backend": "ray", "engine.actors": 2}
    expected, _ = counted(tmp_path / "plain", Plain)
    assert counted(tmp_path / "run", Frozen, **on_actors)[0] == expected


@pytest.mark.parametrize(
    "options",
    [
        {"clock.policy": "wait"},
        {"clock.policy": "over_selection", "clock.extra": 2},
        {"clock.policy": "deadline", "clock.deadline": 2.0},
        {"clock.dropout": 0.5},
        {"method.name": "fedbuff", "method.concurrency": 4, "clock.dropout": 0.5},
        {"method.name": "fedat", "method.tiers": 2, "clock.dropout": 0.5},
        {"selection.name": "oort", "clock.policy": "over_selection", "clock.extra": 2},
    ],
    ids=["wait", "over_selection", "deadline", "dropout", "fedbuff", "fedat", "oort"],
)
def test_a_virtual_clock_charges_a_frozen_layer_no_bytes(tmp_path, options):
    """The devices compute in no time, so that times are those of latency and bytes; some drop out.

    Energy is that of bytes alone.
    """
    rows = [f"{c},1e18,{2e3 * (c + 1)},{4e3 * (c + 1)},0.5,0,1e-6" for c in range(6)]
    table = "\n".join(["client,speed,up,down,latency,watts,joules_per_byte", *rows])
    (tmp_path / "devices.csv").write_text(table)
    chosen = {"clock.name": "devices", "clock.table": str(tmp_path / "devices.csv"), **options}
    found = []
    for model in (Plain, Frozen):
        bytes_, result = counted(tmp_path / model.__name__, model, UNEQUAL, rounds=6, **chosen)
        columns = ["virtual_seconds", "virtual_joules", "lost_clients"]
        found.append((bytes_, result.metrics.select(columns).to_pylist()))
    for (plain, times), (frozen, its_times) in [found]:
        assert frozen == plain
        for row, its in zip(times, its_times, strict=True):
            assert its == pytest.approx(row, abs=2e-5)


def test_statistics_of_a_frozen_layer_add_no_bytes(tmp_path):

    class Normed(Plain):
        def first(self) -> nn.Module:
            return nn.BatchNorm1d(12).requires_grad_(False)

    plain, _ = counted(tmp_path / "plain", Plain, fraction=1.0)
    normed, _ = counted(tmp_path / "normed", Normed, fraction=1.0)
    assert normed == plain
