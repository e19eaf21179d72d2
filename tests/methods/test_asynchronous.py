"""FedBuff and FedAsync against NumPy, against FedAvg, and the clients that they draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import raysim
from raysim.methods.fedasync import FedAsync
from raysim.methods.fedbuff import FedBuff
from raysim.methods.fedprox import FedProx
from raysim.numbers.seeds import sample_cohort, stream
from raysim.testing.tasks import SmallNet
from tests.driver.asynchronous.reference import walk
from tests.methods.test_oracle import LR, assert_close, run
from tests.methods.test_transforms import EPOCHS, MOMENTUM, local_training
from tests.tasks import make_settings, make_task, model_of

SIZES = (3, 40, 17, 8, 25, 60, 5, 12)
ROUNDS, DECAY = 8, 0.8
TIMES = {"rounds": ROUNDS, "local.lr_decay": DECAY, "local.epochs": EPOCHS}


@dataclass(frozen=True)
class Devices:
    """Devices that take a tick a sample and local epoch, as without a clock.

    Attributes:
        sizes: Samples of each client.
    """

    sizes: tuple[int, ...]

    @property
    def clients(self) -> int:
        return len(self.sizes)

    def draw(self, number, refill, most, busy, tick):
        free = [client for client in range(self.clients) if client not in busy]
        draws = stream(0, "cohort", number, *[refill] * (refill > 0))
        return [free[rank] for rank in sample_cohort(draws, len(free), min(most, len(free)))]

    def fly(self, client, tick):
        return tick + EPOCHS * self.sizes[client], False


def rows_of(result):
    return pq.read_table(result.run_dir / "clients.parquet").to_pylist()


def scale(staleness, kind, a, b=4):
    if kind == "polynomial":
        return (1 + staleness) ** -a
    if kind == "hinge":
        return 1.0 if staleness <= b else 1 / (a * (staleness - b) + 1)
    return 1.0


def local_models(result, versions, clients, number, local, mu):
    """The rows of a round, with each client's start and its trained model."""
    for row in rows_of(result):
        if row["round"] == number:
            w, lr = versions[row["version"]], LR * DECAY ** row["version"]
            none = [0.0] * len(w)
            yield row, w, local_training(w, clients[row["client"]], lr, none, local, mu)


def fedbuff(result, w, clients, local, options, weighted=False):
    """The last model, given who started from which version."""
    versions = [w]
    for number in range(1, ROUNDS + 1):
        models = [*local_models(result, versions, clients, number, local, 0.0)]
        sizes = np.array([len(clients[row["client"]][1]) for row, _, _ in models], dtype=float)
        weights = sizes / sizes.mean() if weighted else np.ones(len(models))
        after = [p.copy() for p in versions[-1]]
        for weight, (row, start, end) in zip(weights, models, strict=True):
            factor = weight * scale(number - 1 - row["version"], *options["scale"])
            after = [
                p + options["lr_global"] / len(models) * factor * (e - s)
                for p, s, e in zip(after, start, end, strict=True)
            ]
        versions.append(after)
    return versions[-1]


def fedasync(result, w, clients, alpha, mu, options):
    versions = [w]
    for number in range(1, ROUNDS + 1):
        ((row, _, end),) = local_models(result, versions, clients, number, {}, mu)
        share = alpha * scale(number - 1 - row["version"], *options)
        versions.append(
            [(1 - share) * p + share * q for p, q in zip(versions[-1], end, strict=True)]
        )
    return versions[-1]


CASES = {
    "defaults": ({}, {}, {"lr_global": 1.0, "scale": ("polynomial", 0.5)}),
    "hinge": (
        {"method.staleness": "hinge", "method.a": 2.0, "method.b": 1, "method.lr_global": 0.7},
        MOMENTUM,
        {"lr_global": 0.7, "scale": ("hinge", 2.0, 1)},
    ),
    "weighted": (
        {"method.weighted": True, "method.a": 1.5, "method.max_staleness": 2},
        {},
        {"lr_global": 1.0, "scale": ("polynomial", 1.5)},
    ),
    "constant": (
        {"method.staleness": "constant", "weighting": "examples"},
        {},
        {"lr_global": 1.0, "scale": ("constant", 0)},
    ),
}


class LastSeen(SmallNet):
    """Keeps the mean of the last batch in a buffer, as BatchNorm with a momentum of 1 does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen.copy_(x.mean())
        return super().forward(x)


def test_buffers_are_the_mean_of_the_clients_by_staleness(tmp_path):
    values = np.arange(1.0, 1 + len(SIZES))
    task = make_task(SIZES, LastSeen)
    clients = [
        (np.full_like(x, value), y) for (x, y), value in zip(task.clients, values, strict=True)
    ]
    named = {"method.name": "fedbuff", "method.buffer": 3, "method.concurrency": 6}
    settings = make_settings(tmp_path / "run", **named, rounds=ROUNDS)
    result = raysim.run(settings, raysim.Task(LastSeen, clients, task.test))
    last = [row for row in rows_of(result) if row["round"] == ROUNDS]
    weights = [scale(row["staleness"], "polynomial", 0.5) for row in last]
    assert len({*weights}) > 1
    expected = np.average([values[row["client"]] for row in last], weights=weights)
    kept = raysim.load(result.run_dir, model=LastSeen)
    assert kept.seen.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_fedbuff(tmp_path, case):
    overrides, local, options = CASES[case]
    name = {"method.name": "fedbuff", "method.buffer": 3, "method.concurrency": 6}
    result, w, clients = run(tmp_path, SIZES, **TIMES, **name, **overrides, **local)
    rows = rows_of(result)
    assert len(rows) == 3 * ROUNDS and len({row["staleness"] for row in rows}) > 2
    expected = fedbuff(result, w, clients, local, options, weighted=case == "weighted")
    assert_close(result.params, expected)
    most = overrides.get("method.max_staleness")
    walked = walk(Devices(SIZES), (3, 6, most), ROUNDS)
    arrived = [(n + 1, c, v) for n, log in enumerate(walked) for c, v, _, _ in log.arrived]
    assert sorted((r["round"], r["client"], r["version"]) for r in rows) == sorted(arrived)
    dropped = [len(log.dropped) for log in walked]
    assert result.metrics["updates_dropped"].to_pylist() == dropped
    assert (sum(dropped) > 0) == (most is not None)
    size = 4 * sum(p.size for p in w)
    sent = [size * len(log.started) for log in walked]
    received = [size * (3 + gone) for gone in dropped]
    assert result.metrics["bytes_down"].to_pylist() == sent
    assert result.metrics["bytes_up"].to_pylist() == received


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        ({}, (0.6, 0.005, ("polynomial", 0.5))),
        (
            {"method.alpha": 0.9, "method.mu": 0.3, "method.staleness": "hinge", "method.b": 2},
            (0.9, 0.3, ("hinge", 10.0, 2)),
        ),
    ],
)
def test_fedasync(tmp_path, overrides, options):
    name = {"method.name": "fedasync", "method.concurrency": 5}
    result, w, clients = run(tmp_path, SIZES, **TIMES, **name, **overrides)
    rows = rows_of(result)
    assert len(rows) == ROUNDS and max(row["staleness"] for row in rows) > 2
    assert_close(result.params, fedasync(result, w, clients, *options))


def test_figures_of_a_round(tmp_path):
    settings = {"method.name": "fedbuff", "method.buffer": 2, "method.concurrency": 5, **TIMES}
    result = raysim.run(make_settings(tmp_path / "run", **settings), make_task(SIZES))
    rows = rows_of(result)
    for row in result.metrics.to_pylist():
        own = [r for r in rows if r["round"] == row["round"]]
        stale = [r["staleness"] for r in own]
        assert stale == [row["round"] - 1 - r["version"] for r in own]
        assert row["staleness_mean"] == np.mean(stale) and row["staleness_max"] == max(stale)
        loss = np.average([r["train_loss"] for r in own], weights=[r["samples"] for r in own])
        assert row["train_loss"] == pytest.approx(loss) and row["clients"] == 2


class Normalised(SmallNet):
    """A network with BatchNorm: floating-point buffers, and a counter."""

    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Sequential(self.hidden, torch.nn.BatchNorm1d(16))


class Proximal(FedBuff):
    """FedBuff with FedProx's rules, but for its name a chain of both."""

    def rules(self):
        return raysim.chain(super().rules(), FedProx(mu=0.5).rules())


def test_chained_with_the_rules_of_another_method(tmp_path):
    task, times = make_task(SIZES), {"rounds": 5, "fraction": 0.7}
    options = {"buffer": 2, "a": 2.0}
    named = {f"method.{key}": value for key, value in options.items()}
    name = {"method.name": f"{__name__}:Proximal"}
    raysim.run(make_settings(tmp_path / "own", **name, **named, **times), task)
    chained = {
        "method.name": "chain",
        "method.methods": {"fedbuff": options, "fedprox": {"mu": 0.5}},
    }
    raysim.run(make_settings(tmp_path / "chain", **chained, **times), task)
    assert model_of(tmp_path / "own") == model_of(tmp_path / "chain")


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"fedbuff": {}, "fedasync": {}}, "fedbuff and fedasync each set their own asynchrony"),
    ],
)
def test_what_does_not_chain_is_refused_by_name(tmp_path, methods, message):
    with pytest.raises(raysim.SettingsError, match=message):
        chained = {"method.name": "chain", "method.methods": methods}
        raysim.run(make_settings(tmp_path / "run", **chained), make_task(SIZES))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("other", ["momentum", "fednova", "scaffold", "moon"])
def test_what_would_be_discounted_with_fedbuff_is_refused_by_name(tmp_path, other, first):
    names = (other, "fedbuff") if first else ("fedbuff", other)
    chained = {"method.name": "chain", "method.methods": {name: {} for name in names}}
    message = rf"^method\.methods: {other} cannot be chained with fedbuff, which discounts.*: its"
    with pytest.raises(raysim.SettingsError, match=message):
        make_settings(tmp_path / "run", **chained)


@pytest.mark.parametrize("other", ["fedprox", "fedmax", "fedavg"])
def test_what_sends_and_averages_the_model_goes_with_fedbuff(tmp_path, other):
    for names in ((other, "fedbuff"), ("fedbuff", other)):
        chained = {"method.name": "chain", "method.methods": {name: {} for name in names}}
        assert [*make_settings(tmp_path / "run", **chained).method.methods] == [*names]


@pytest.mark.parametrize("name", ["fedbuff", "fedasync"])
def test_of_fedbabu_the_body_alone_travels(tmp_path, name):
    chained = {"method.name": "chain", "method.methods": {name: {}, "fedbabu": {}}}
    found = raysim.run(make_settings(tmp_path / "run", **chained, rounds=3), make_task(SIZES))
    plain = raysim.run(
        make_settings(tmp_path / "plain", **{"method.name": name}, rounds=3), make_task(SIZES)
    )
    sizes = {name: 4 * tensor.numel() for name, tensor in found.params.items()}
    body = sum(size for name, size in sizes.items() if not name.startswith("head."))
    for way in ("bytes_up", "bytes_down"):
        whole = plain.metrics[way].to_numpy()
        assert (found.metrics[way].to_numpy() * sum(sizes.values()) == whole * body).all()


class Frozen(SmallNet):
    """A network with a parameter in float64 that is not trained."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(FROZEN.clone(), requires_grad=False)


FROZEN = torch.linspace(-1, 1, 192, dtype=torch.float64)


def test_a_frozen_parameter_does_not_move(tmp_path):
    """Not by rounding, as a mean weighed by staleness does."""
    settings = make_settings(tmp_path, rounds=4, **{"method.name": "fedbuff", "method.buffer": 3})
    result = raysim.run(settings, make_task(SIZES, Frozen))
    loaded = raysim.load(result.run_dir, Frozen)
    assert "scale" not in result.params and torch.equal(loaded.scale, FROZEN)


EQUAL = (24,) * 8
EQUALS = {"fraction": 0.5, "rounds": 4, "local.momentum": 0.5, "local.lr_decay": 0.7}


def test_fedbuff_that_waits_for_all_is_fedavg_bit_for_bit(tmp_path):
    """K = M = m, a power of two."""
    task = make_task(EQUAL, Normalised)
    plain = raysim.run(make_settings(tmp_path / "fedavg", **EQUALS), task)
    buffered = {"method.name": "fedbuff", "method.buffer": 4, **EQUALS}
    found = raysim.run(make_settings(tmp_path / "fedbuff", **buffered), task)
    assert model_of(tmp_path / "fedavg") == model_of(tmp_path / "fedbuff")
    for name in plain.metrics.column_names:
        if not name.endswith("seconds"):
            assert plain.metrics[name].to_pylist() == found.metrics[name].to_pylist(), name
    assert found.metrics["staleness_max"].to_pylist() == [0.0] * 4
    with_delay = {**buffered, "method.buffer": 2}
    raysim.run(make_settings(tmp_path / "delay", **with_delay), task)
    assert model_of(tmp_path / "fedavg") != model_of(tmp_path / "delay")


def test_fedbuff_of_three_clients_is_fedavg_within_an_ulp(tmp_path):
    """The mean of three models may lie halfway between two float32 numbers."""
    task, three = make_task(EQUAL[:6]), {"fraction": 0.5, "rounds": 1}
    plain = raysim.run(make_settings(tmp_path / "fedavg", **three), task)
    name = {"method.name": "fedbuff", "method.buffer": 3, **three}
    found = raysim.run(make_settings(tmp_path / "fedbuff", **name), task)
    for name, expected in plain.params.items():
        ulp = torch.from_numpy(np.spacing(expected.abs().numpy()))
        assert ((found.params[name] - expected).abs() <= ulp).all()


def test_fedasync_of_one_client_at_a_time_is_fedavg(tmp_path):
    task, one = make_task(SIZES), {"fraction": 1 / 8, "rounds": 4}
    raysim.run(make_settings(tmp_path / "fedavg", **one), task)
    options = {"alpha": 1.0, "mu": 0.0, "staleness": "constant", "concurrency": 1}
    named = {f"method.{key}": value for key, value in options.items()}
    raysim.run(make_settings(tmp_path / "one", **one, **named, **{"method.name": "fedasync"}), task)
    assert model_of(tmp_path / "fedavg") == model_of(tmp_path / "one")


def test_factors_of_staleness_by_hand():
    """The hinge's default is a=10, b=4; the polynomial's a=1/2."""
    assert FedBuff().discount(0) == FedBuff(staleness="hinge").discount(4) == 1
    assert FedBuff().discount(3) == 0.5 and FedBuff(a=2.0).discount(1) == 0.25
    assert FedBuff(staleness="hinge").discount(6) == pytest.approx(1 / 21)
    assert FedBuff(staleness="constant").discount(9) == 1
    assert FedAsync().discount(9) == 1  # its server weighs the update, not the sum
    assert FedBuff(concurrency=5).asynchrony(2).buffer == 3
    assert FedBuff().asynchrony(7).concurrency == 7 and FedAsync().asynchrony(7).buffer == 1
