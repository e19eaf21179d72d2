"""FedAT against NumPy, against FedProx, and its server's step by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import raysim
from raysim.api.rules import Reduced
from raysim.methods.fedat import FedAt
from tests.driver.asynchronous.reference import tiers_by_hand, walk
from tests.methods.test_asynchronous import (
    DECAY,
    SIZES,
    TIMES,
    Devices,
    Normalised,
    local_models,
    rows_of,
)
from tests.methods.test_oracle import assert_close, run
from tests.methods.test_transforms import MOMENTUM
from tests.tasks import make_settings, make_task, model_of

ROUNDS = 32
CASES = {
    "defaults": ({"method.concurrency": 5}, {}, 5, 5, 0.4),
    "two tiers": ({"method.tiers": 2, "method.mu": 1.5, "fraction": 0.6}, MOMENTUM, 2, 5, 1.5),
    "alike": ({"method.tiers": 3, "weighting": "uniform", "fraction": 1.0}, {}, 3, 8, 0.4),
}
"""Settings, those of local training, M, clients at once and lambda."""


def fedat(result, w, clients, local, walked, tiers, mu, *, alike):
    """The last model, and the updates of each tier, given who started from which version."""
    own, updates, versions = [w] * len(tiers), [0] * len(tiers), [w]
    for number, log in enumerate(walked, 1):
        models = [*local_models(result, versions, clients, number, local, mu)]
        sizes = np.array([1 if alike else len(clients[row["client"]][1]) for row, _, _ in models])
        (tier,) = {n for n, tier in enumerate(tiers) for c, *_ in log.arrived if c in tier}
        own[tier] = weighted(sizes / sizes.sum(), [end for _, _, end in models])
        updates[tier] += 1
        versions.append(weighted([count / sum(updates) for count in reversed(updates)], own))
    return versions[-1], updates


def weighted(shares, models):
    return [
        sum(share * p for share, p in zip(shares, tensors, strict=True))
        for tensors in zip(*models, strict=True)
    ]


@pytest.mark.parametrize("case", CASES)
def test_fedat(tmp_path, case):
    overrides, local, count, concurrency, mu = CASES[case]
    options = {**TIMES, "rounds": ROUNDS, "method.name": "fedat", **overrides, **local}
    result, w, clients = run(tmp_path, SIZES, **options)
    devices = Devices(SIZES)
    tiers = tiers_by_hand([devices.fly(client, 0)[0] for client in range(len(SIZES))], count)
    walked = walk(devices, (None, concurrency, None), ROUNDS, tiers)
    arrived = [(n + 1, c, v) for n, log in enumerate(walked) for c, v, _, _ in log.arrived]
    rows = rows_of(result)
    assert sorted((r["round"], r["client"], r["version"]) for r in rows) == sorted(arrived)
    expected, updates = fedat(result, w, clients, local, walked, tiers, mu, alike=case == "alike")
    assert min(updates) > 0 and len({*updates}) > 1 and max(row["staleness"] for row in rows) > 1
    assert_close(result.params, expected)
    named = [int(tier) for tier in result.metrics["tier"].to_pylist()]
    assert [named.count(number + 1) for number in range(count)] == updates
    size = 4 * sum(p.size for p in w)
    assert result.metrics["bytes_down"].to_pylist() == [size * len(log.started) for log in walked]
    assert result.metrics["bytes_up"].to_pylist() == [size * len(log.arrived) for log in walked]


ONE = {"rounds": 4, "fraction": 0.5, "local.lr_decay": DECAY, "local.momentum": 0.5}


@pytest.mark.parametrize("clock", ["none", "devices"])
def test_one_tier_is_fedprox_bit_for_bit(tmp_path, clock):
    task, options = make_task(SIZES, Normalised), {**ONE, "clock.name": clock, "method.mu": 0.3}
    prox, tier = {"method.name": "fedprox"}, {"method.name": "fedat", "method.tiers": 1}
    plain = raysim.run(make_settings(tmp_path / "fedprox", **options, **prox), task)
    found = raysim.run(make_settings(tmp_path / "fedat", **options, **tier), task)
    assert model_of(tmp_path / "fedprox") == model_of(tmp_path / "fedat")
    for name in plain.metrics.column_names:
        if name.startswith("virtual") or not name.endswith("seconds"):
            expected = plain.metrics[name].to_pylist()
            assert found.metrics[name].to_pylist() == pytest.approx(expected, rel=1e-12), name
    assert {*found.metrics["staleness_max"].to_pylist()} == {0.0}


def test_the_servers_step_by_hand():
    """Tiers of a model w and a counter n arrive in the order 1, 1, 3, 2."""
    method = FedAt(tiers=3)
    network = torch.nn.Linear(1, 1, bias=False)
    network.register_buffer("n", torch.tensor(5))
    torch.nn.init.constant_(network.weight, 7.0)
    state, found = method.init(network), []
    for tier, w, n in ((0, 1.0, 8), (0, 2.0, 9), (2, 4.0, 11), (1, 16.0, 7)):
        means = {"model": {"weight": torch.tensor([[w]]), "n": torch.tensor(n)}}
        reduced = Reduced((4,), means, {}, {}, {4: 0}, {4: tier})
        state = method.server_update(None, state, reduced)  # type: ignore[arg-type]
        model = state.groups["model"]
        found.append((model["weight"].item(), model["n"].item(), method.metrics(state)["tier"]))
    # Shares are T_3/T, T_2/T, T_1/T of tiers 1, 2, 3, whose models begin as 7.
    assert found[:2] == [(7.0, 8, 1), (7.0, 9, 1)]  # tier 3, which mirrors tier 1, has not arrived
    assert found[2] == (pytest.approx(1 / 3 * 2 + 0 * 7 + 2 / 3 * 4), 11, 3)
    assert found[3] == (pytest.approx(1 / 4 * 2 + 1 / 4 * 16 + 2 / 4 * 4), 11, 2)


def test_chained_it_keeps_its_tiers(tmp_path):
    options, times = {"tiers": 2, "mu": 0.7}, {**ONE, "rounds": 12}
    own = {"method.name": "fedat", **{f"method.{name}": value for name, value in options.items()}}
    found = raysim.run(make_settings(tmp_path / "own", **times, **own), make_task(SIZES))
    chained = {"method.name": "chain", "method.methods": {"fedavg": {}, "fedat": options}}
    raysim.run(make_settings(tmp_path / "chain", **times, **chained), make_task(SIZES))
    assert model_of(tmp_path / "own") == model_of(tmp_path / "chain")
    assert {*found.metrics["tier"].to_pylist()} == {1, 2}
