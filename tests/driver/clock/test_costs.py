"""Virtual seconds and joules of clients, against FLOPs and bytes that are counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import raysim
from raysim.methods.fedavg import FedAvg
from raysim.training.flops import FlopCounter, Polynomial
from tests.adapters import task_for
from tests.tasks import EQUAL, UNEQUAL, StopAfter, make_settings, make_task, model_of

FIRST, SECOND = 2 * 12 * 16, 2 * 16 * 3
"""FLOPs of the two layers of `SmallNet`, of a sample's forward pass."""
FORWARD = FIRST + SECOND
STEP = 2 * FIRST + 3 * SECOND
"""Forward, gradients of both weights, and of the second layer's input; data needs none."""
MODEL = 4 * (12 * 16 + 16 + 16 * 3 + 3)
"""Bytes of the model."""
SPEEDS = (1e6, 2e6, 5e5, 1e6, 4e6, 3e6)
HEAD = frozenset({"head.weight", "head.bias"})


class HeadFirst(raysim.Method):
    """Trains the head alone in the first round, then all; one epoch more for odd clients."""

    def init(self, network: Any) -> raysim.ServerState:
        model = {n: t.detach().clone() for n, t in network.named_parameters()}
        return raysim.ServerState({"model": model})

    def round(self, now: raysim.Round, state: raysim.ServerState) -> Any:
        epochs = {client: 1 + client % 2 for client in now.cohort}
        trainable = None if now.number else HEAD
        pass_ = raysim.Pass(now.cohort, state.groups, epochs=epochs, lr=now.lr, trainable=trainable)
        return state.replace(**(yield pass_).means), {}


class OwnVectors(FedAvg):
    """FedAvg that sends every client 1000 floats of its own."""

    def training_pass(self, now: raysim.Round, state: raysim.ServerState) -> raysim.Pass:
        own = {client: {"own": {"v": torch.zeros(1000)}} for client in now.cohort}
        return replace(super().training_pass(now, state), personal=own)


def devices(folder: Path) -> dict[str, Any]:
    """Return settings of a clock whose devices differ, by a table."""
    rows = [f"{client},{speed},1e6,2e6,0.25,3,1e-6" for client, speed in enumerate(SPEEDS)]
    path = folder / "devices.csv"
    path.write_text("client,speed,up,down,latency,watts,joules_per_byte\n" + "\n".join(rows))
    return {"clock.name": "devices", "clock.table": str(path)}


def rows_of(folder: Path, method: str, **overrides: Any) -> list[dict[str, Any]]:
    """Run two rounds; return the rows of its clients."""
    chosen = {"method.name": method, "rounds": 2, **devices(folder), **overrides}
    raysim.run(make_settings(folder / "run", **chosen), make_task(UNEQUAL))
    rows = pq.read_table(folder / "run" / "clients.parquet").to_pylist()
    assert len(rows) > 5
    return rows


def check(row: dict[str, Any], flops: float, up: int = MODEL, down: int = MODEL) -> None:
    """Compare a row with the formula."""
    compute = flops / SPEEDS[row["client"]]
    seconds = compute + up / 1e6 + down / 2e6 + 0.25
    assert row["virtual_seconds"] == pytest.approx(seconds, abs=2e-6)
    assert row["virtual_joules"] == pytest.approx(3 * compute + 1e-6 * (up + down), rel=1e-6)


@pytest.mark.parametrize("batch", [8, 7, "full"])
def test_plain_steps_cost_their_samples(tmp_path, batch):
    for row in rows_of(tmp_path, "fedavg", **{"local.batch_size": batch, "local.epochs": 3}):
        check(row, 3 * UNEQUAL[row["client"]] * STEP)


def test_frozen_groups_have_no_gradient_and_epochs_differ_by_client(tmp_path):
    for row in rows_of(tmp_path, "tests.driver.clock.test_costs:HeadFirst"):
        step = FORWARD + SECOND if row["round"] == 1 else STEP
        check(row, (1 + row["client"] % 2) * UNEQUAL[row["client"]] * step)


def test_a_second_stream_is_a_further_forward_pass(tmp_path):
    for row in rows_of(tmp_path, "two_stream_l2", **{"method.lam": 0.1, "local.epochs": 2}):
        check(row, 2 * UNEQUAL[row["client"]] * (STEP + FORWARD))


def test_the_passes_of_fsvrg(tmp_path):
    """The full gradient of all clients, then two gradients a step and the full gradient down."""
    passes = {0: 0, 1: 0}
    for row in rows_of(tmp_path, "fsvrg", **{"local.epochs": 2}):
        n = UNEQUAL[row["client"]]
        passes[row["pass"]] += 1
        check(row, n * STEP if row["pass"] == 0 else 2 * n * 2 * STEP)
    assert passes == {0: 12, 1: 8}


def test_a_round_lasts_as_its_passes_do_and_the_next_one_follows(tmp_path):
    rows = rows_of(tmp_path, "fsvrg")
    metrics = pq.read_table(tmp_path / "run" / "metrics.parquet").to_pylist()
    begin = 0.0
    for number, metric in enumerate(metrics, start=1):
        ends = []
        for of_pass in (0, 1):
            found = [r for r in rows if (r["round"], r["pass"]) == (number, of_pass)]
            start = begin + sum(ends)
            assert [r["virtual_start"] for r in found] == pytest.approx([start] * len(found))
            ends.append(max(r["virtual_seconds"] for r in found))
        begin += sum(ends)
        assert metric["virtual_seconds"] == pytest.approx(sum(ends))
        joules = sum(r["virtual_joules"] for r in rows if r["round"] == number)
        assert metric["virtual_joules"] == pytest.approx(joules)
        assert metric["lost_clients"] == 0


def test_costs_that_depend_on_values_are_the_same_after_an_interruption(tmp_path):
    """FedALA's clients learn nothing in round 1, on which costs are counted; later they do."""
    own = {"method.name": "fedala", "method.max_epochs": 30, "method.threshold": 0.0, "seed": 6}
    clock = {"clock.name": "devices", "clock.policy": "over_selection", "clock.extra": 3}
    given = {**own, **clock, "rounds": 3, "fraction": 0.5}
    whole = raysim.run(make_settings(tmp_path / "whole", **given), make_task(UNEQUAL))
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "cut", **given), make_task(UNEQUAL), StopAfter(2))
    cut = raysim.resume(tmp_path / "cut", make_task(UNEQUAL))
    times = [each.metrics["virtual_seconds"].to_pylist() for each in (whole, cut)]
    assert times[0] == times[1]
    assert model_of(tmp_path / "whole") == model_of(tmp_path / "cut")


KINDS = {"divide_and_conquer": 2, "fedex_lora": 1, "flexlora": 1, "flora": 1, "hetlora": 1}
KINDS |= {"feddpa": 2, "rolora": 2, "fedrep": 2}


@pytest.mark.parametrize("method", KINDS)
def test_each_kind_of_pass_is_counted_once(tmp_path, monkeypatch, method):
    counted, plain = [], FlopCounter._counted
    monkeypatch.setattr(FlopCounter, "_counted", lambda *given: counted.append(1) or plain(*given))
    given = {"method.name": method, "rounds": 4, "clock.name": "devices"}
    given |= {"method.split": 1} if method == "divide_and_conquer" else {}
    task = task_for(method, make_task(UNEQUAL))
    raysim.run(make_settings(tmp_path / "run", **given), task)
    assert len(counted) == KINDS[method]


def test_analyses_take_no_virtual_time(tmp_path):
    with_analysis = {"analysis": ["kl_activations", "client_information", "new_client"]}
    for folder, more in (("plain", {}), ("analysed", with_analysis)):
        (tmp_path / folder).mkdir()
        rows_of(tmp_path / folder, "fedavg", **{"evaluation.clients": True}, **more)
    plain, analysed = (
        pq.read_table(tmp_path / name / "run" / "clients.parquet")["virtual_seconds"].to_pylist()
        for name in ("plain", "analysed")
    )
    assert plain == analysed


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("tests.driver.clock.test_costs:OwnVectors", 6 * (MODEL + 4000)),
        # The model and the atoms of 16 neurons to all, the matched layer and its atoms to three.
        ("fedma", 6 * (MODEL + 4 * 16) + 3 * (4 * (12 * 16 + 16) + 4 * 16)),
    ],
    ids=["own", "fedma"],
)
def test_what_is_sent_to_one_client_alone_is_counted_once_of_lost_clients_too(
    tmp_path, method, expected
):
    """Equal devices: all six have received everything when three of them count."""
    chosen = {"clock.name": "devices", "clock.spread": 0.0, "rounds": 1, "fraction": 0.5}
    more = {"clock.policy": "over_selection", "clock.extra": 3, "local.momentum": 0.0}
    settings = make_settings(tmp_path, **chosen, **more, **{"method.name": method})
    result = raysim.run(settings, make_task(EQUAL))
    assert result.metrics["lost_clients"].to_pylist() == [3]
    assert result.metrics["bytes_down"].to_pylist() == [expected]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 40, 1000])
def test_a_polynomial_of_second_degree_by_hand(n):
    def f(x: int) -> int:
        return 7 + 5 * x + 3 * x * x

    assert Polynomial((f(2), f(3), f(4))).at(np.array([float(n)])) == f(n)
