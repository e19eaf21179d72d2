"""Transforms of the gradient beside momentum, weight decay and temperature, against NumPy.

Clients are unequal and half of them take part in a round.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import raysim
from raysim.api.rules import send_model
from raysim.methods.fedprox import FedProx
from raysim.methods.momentum import Momentum
from raysim.methods.scaffold import Scaffold
from raysim.numbers.tensors import add_scaled
from tests.methods.test_oracle import LR, assert_close, gradient, run

ROUNDS, EPOCHS, MU = 4, 3, 0.7
MOMENTUM = {"local.momentum": 0.8}
NESTEROV = {**MOMENTUM, "local.nesterov": True}
DECAY = {"local.weight_decay": 0.1}
TEMPERATURE = {"local.temperature": 0.5}
EVERYTHING = {**NESTEROV, **DECAY, **TEMPERATURE, "local.lr_decay": 0.7}
LOCAL = {
    "sgd": {},
    "momentum": MOMENTUM,
    "nesterov": NESTEROV,
    "weight-decay": DECAY,
    "temperature": TEMPERATURE,
    "everything": EVERYTHING,
}


class ProximalScaffold(Scaffold):
    """SCAFFOLD with a proximal term in the local objective."""

    def rules(self):
        return raysim.chain(FedProx(mu=MU).rules(), super().rules())


METHODS = {
    "fedprox": {"method.name": "fedprox", "method.mu": MU},
    "scaffold": {"method.name": "scaffold"},
    "both": {"method.name": f"{__name__}:ProximalScaffold"},
}


def local_training(w, data, lr, correction, local, mu, anchor=None, epochs=EPOCHS, trained=None):
    """A client's steps; `correction` is c - c_k, the proximal term's `anchor` by default w.

    `trained` has the numbers of the tensors that are trained, by default all.
    """
    x, y = data
    momentum, start, velocity = local.get("local.momentum", 0), anchor or w, None
    for _ in range(epochs):
        g = gradient(w, x, y, local.get("local.temperature", 1.0))
        decay = local.get("local.weight_decay", 0)
        g = [d + decay * p + mu * (p - s) for d, p, s in zip(g, w, start, strict=True)]
        g = [d if trained is None or i in trained else 0 * d for i, d in enumerate(g)]
        velocity = (
            [momentum * v + d for v, d in zip(velocity, g, strict=True)] if velocity else [*g]
        )
        step = velocity
        if local.get("local.nesterov"):
            step = [d + momentum * v for d, v in zip(g, velocity, strict=True)]
        w = [p - lr * (d + e) for p, d, e in zip(w, step, correction, strict=True)]
    return w


def oracle(w, clients, cohorts, local, *, mu=0.0, variates=False):
    """The last global model; with control variates the mean is uniform."""
    c = [np.zeros_like(p) for p in w]
    own = [[np.zeros_like(p) for p in w] for _ in clients]
    for number, cohort in enumerate(cohorts):
        lr = LR * local.get("local.lr_decay", 1.0) ** number
        sizes = np.array([1.0 if variates else len(clients[k][1]) for k in cohort])
        mean, change = ([np.zeros_like(p) for p in w] for _ in range(2))
        for k, share in zip(cohort, sizes / sizes.sum(), strict=True):
            correction = [all_ - mine for all_, mine in zip(c, own[k], strict=True)]
            after = local_training(w, clients[k], lr, correction, local, mu)
            mean = [m + share * p for m, p in zip(mean, after, strict=True)]
            if variates:
                moved = [(p - q) / (EPOCHS * lr) for p, q in zip(w, after, strict=True)]
                new = [d - e for d, e in zip(moved, correction, strict=True)]
                change = [
                    d + share * (n - mine) for d, n, mine in zip(change, new, own[k], strict=True)
                ]
                own[k] = new
        w = mean
        c = [v + len(cohort) / len(clients) * d for v, d in zip(c, change, strict=True)]
    return w


def run_half(tmp_path, overrides):
    """Run with half of the clients a round; return the result, the start, clients and cohorts."""
    options = {"rounds": ROUNDS, "fraction": 0.5, "local.epochs": EPOCHS}
    result, w, clients = run(tmp_path, **options, **overrides)
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    numbers = sorted({row["round"] for row in rows})
    first = [(row["round"], row["client"]) for row in rows if row["pass"] == 0]
    cohorts = [[client for number, client in first if number == n] for n in numbers]
    assert [len(cohort) for cohort in cohorts] == [2] * ROUNDS
    return result, w, clients, cohorts


@pytest.mark.parametrize("local", LOCAL)
@pytest.mark.parametrize("method", METHODS)
def test_transforms_beside_local_settings(tmp_path, method, local):
    result, w, clients, cohorts = run_half(tmp_path, {**METHODS[method], **LOCAL[local]})
    mu = 0.0 if method == "scaffold" else MU
    variates = method != "fedprox"
    expected = oracle(w, clients, cohorts, LOCAL[local], mu=mu, variates=variates)
    assert_close(result.params, expected)


def test_transforms_of_stacked_clients(tmp_path):
    stacked = {"engine.vectorize": 2, **METHODS["both"], **EVERYTHING}
    result, w, clients, cohorts = run_half(tmp_path, stacked)
    assert_close(result.params, oracle(w, clients, cohorts, EVERYTHING, mu=MU, variates=True))


@pytest.mark.parametrize("stacked", [0, 4])
def test_the_reported_objective_has_the_proximal_term(tmp_path, stacked):
    """A client's two steps: the term is 0 at the first, mu/2 ||lr * g||^2 at the second."""
    options = {"rounds": 1, "local.epochs": 2, "engine.vectorize": stacked}
    result, w, clients = run(tmp_path, **METHODS["fedprox"], **options)
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    for row, (x, y) in zip(rows, clients, strict=True):
        term = MU / 2 * sum(((LR * g) ** 2).sum() for g in gradient(w, x, y)) / 2
        assert row["objective"] - row["train_loss"] == pytest.approx(term, rel=1e-3, abs=1e-7)


def doubled(view, gradients, batch, state):
    return add_scaled(gradients, gradients), {"calls": state["calls"] + 1}


def no_calls(view):
    return {"calls": torch.zeros(())}


def send_calls(view, trained):
    return raysim.Upload(metrics={"calls": float(trained.states["doubled"]["calls"])})


def some_start(broadcast, state, personal):
    return broadcast["model"]


DOUBLED = raysim.Rules(
    transforms=(raysim.Transform("doubled", doubled, no_calls),), finish=send_calls
)


class DoubledMomentum(Momentum):
    """Momentum FedAvg along twice the gradient, which counts its steps."""

    def rules(self):
        return raysim.chain(DOUBLED, super().rules(), raysim.Rules(start=some_start))


@pytest.mark.parametrize("stacked", [0, 2])
def test_chained_rules_keep_their_states_and_finish_together(tmp_path, stacked):
    name = {"method.name": f"{__name__}:DoubledMomentum", "method.gamma": 0.0}
    result, w, clients, cohorts = run_half(tmp_path, {**name, "engine.vectorize": stacked})
    for cohort in cohorts:
        sizes = np.array([len(clients[k][1]) for k in cohort])
        ends = []
        for k in cohort:
            local = w
            for _ in range(EPOCHS):
                step = gradient(local, *clients[k])
                local = [p - 2 * LR * g for p, g in zip(local, step, strict=True)]
            ends.append(local)
        w = [
            sum(share * p for share, p in zip(sizes / sizes.sum(), parts, strict=True))
            for parts in zip(*ends, strict=True)
        ]
    assert_close(result.params, w)
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    assert {row["calls"] for row in rows} == {EPOCHS}


def own_criterion(view, outputs, batch):
    return batch.loss(outputs.logits)


def send_half(view, trained):
    return raysim.Upload(sums={"model": {}})


def send_twice(view, trained):
    return raysim.Upload(metrics={"calls": 2.0})


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([raysim.Rules(start=some_start)] * 2, f"{__name__}.some_start and .* the start"),
        (
            [raysim.Rules(criterion=own_criterion), raysim.Rules(criterion=partial(own_criterion))],
            f"{__name__}.own_criterion and {__name__}.own_criterion each set the criterion",
        ),
        (
            [FedProx().rules(), FedProx(mu=1).rules()],
            "must have different names; given .*proximal",
        ),
    ],
)
def test_rules_that_do_not_chain(rules, message):
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.chain(*rules)


@pytest.mark.parametrize(
    ("other", "message"), [(send_twice, "metrics 'calls'"), (send_half, "sums 'model'")]
)
def test_uploads_that_do_not_merge(other, message):
    parts = {"params": {"w": torch.ones(1)}, "states": {"doubled": no_calls(None)}, "broadcast": {}}
    view, trained = (type("Client", (), parts) for _ in range(2))
    model = raysim.Rules(finish=partial(send_model))
    chained = raysim.chain(DOUBLED, model, raysim.Rules(finish=other))
    with pytest.raises(raysim.SettingsError, match=message):
        chained.finish(view, trained)


def test_chaining_nothing_is_fedavg():
    assert raysim.chain() == raysim.chain(raysim.Rules()) == raysim.Rules()
    rules = Scaffold().rules()
    assert raysim.chain(rules) == rules
