"""q-FFL, AFL, DRFA and TERM against NumPy; the simplex; what their settings turn them into."""

from __future__ import annotations

from math import ceil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from scipy.optimize import brentq

import raysim
from raysim.methods.reweighted import projected
from raysim.numbers.seeds import torch_generator
from tests.methods import common
from tests.methods.common import outputs
from tests.methods.reference import MOMENTUM, SIZES, Reference, T, plain
from tests.methods.test_oracle import assert_close
from tests.tasks import StopAfter, make_settings, make_task

Q, TILT, STEP, GAMMA, DECAY, FLOOR = 2.5, 3.0, 0.2, 0.05, 0.7, 0.06


def loss_of(reference, w, client):
    """F_k: the mean cross-entropy of all of a client's samples, at temperature T."""
    x, y = reference.clients[client]
    logits = outputs(w, x)[1] / T
    shifted = logits - logits.max(1, keepdims=True)
    return float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(y)), y]))


def changes_of(reference, w, number, cohort):
    trained = [reference.train(w, number, client) for client in cohort]
    return [[b - a for a, b in zip(w, ends, strict=True)] for ends in trained]


def added(w, changes, weights):
    """w plus the weighted sum of changes."""
    return [
        p + sum(s * d for s, d in zip(weights, each, strict=True))
        for p, *each in zip(w, *changes, strict=True)
    ]


def qffl(reference, q):
    w = reference.start
    for number, cohort in enumerate(reference.cohorts):
        eta = reference.lr(number)
        losses = np.array([loss_of(reference, w, k) + 1e-10 for k in cohort])
        changes = changes_of(reference, w, number, cohort)
        squares = np.array([sum((d**2).sum() for d in each) for each in changes]) / eta**2
        h = q * losses ** (q - 1) * squares + losses**q / eta
        w = added(w, changes, losses**q / eta / h.sum())
    return w, {}


def term(reference, t):
    w, z = reference.start, None
    for number, cohort in enumerate(reference.cohorts):
        losses = np.array([loss_of(reference, w, k) for k in cohort])
        tilted = np.exp(t * (losses - losses.max()))
        z = tilted.mean() if z is None else (z + tilted.mean()) / 2
        w = added(w, changes_of(reference, w, number, cohort), tilted / z / len(cohort))
    return w, {"z/z": z}


def on_simplex(values):
    """The nearest point of the simplex, by a root of the sum's excess."""
    theta = brentq(
        lambda theta: np.maximum(values - theta, 0).sum() - 1,
        *(values.min() - 2, values.max()),
        xtol=1e-15,
    )
    return np.maximum(values - theta, 0)


def afl(reference, deploys_mean):
    w, weights, models = reference.start, np.full(len(SIZES), 1 / len(SIZES)), []
    for number, cohort in enumerate(reference.cohorts):
        losses = np.array([loss_of(reference, w, k) for k in cohort])
        w = added(w, changes_of(reference, w, number, cohort), weights)
        weights = on_simplex(weights + STEP * losses)
        models.append(w)
    mean = [np.mean(parts, axis=0) for parts in zip(*models, strict=True)]
    return (mean if deploys_mean else w), {"lambda/lambda": weights}


def drfa(reference, heard):
    """`heard` is, per round, the clients of the second pass."""
    w, weights = reference.start, np.array(SIZES) / sum(SIZES)
    for number, cohort in enumerate(reference.cohorts):
        draw = torch_generator(0, "server/step", number)
        u = 1 - float(torch.rand((), generator=draw, dtype=torch.float64))
        ends, kept = [], []
        for k in cohort:
            path = []

            def slope(local, x, y, path=path):
                path.append(local)
                return plain(local, x, y)

            path.append(reference.train(w, number, k, slope))
            ends.append(path[-1])
            kept.append(path[ceil(u * (len(path) - 1))])
        changes = [[b - a for a, b in zip(w, end, strict=True)] for end in ends]
        w = added(w, changes, len(SIZES) * weights[cohort] / len(cohort))
        there = [np.mean(parts, axis=0) for parts in zip(*kept, strict=True)]
        v = np.zeros(len(SIZES))
        v[heard[number]] = (
            len(SIZES) / 3 * np.array([loss_of(reference, there, k) for k in heard[number]])
        )
        tau = np.mean([reference.steps(k) for k in cohort])
        weights = on_simplex(weights + GAMMA * DECAY ** (number + 1) * tau * v)
        weights = np.maximum(weights, FLOOR)
        weights /= weights.sum()
    return w, {"lambda/lambda": weights}


def heard_in(reference):
    rows = pq.read_table(reference.result.run_dir / "clients.parquet").to_pylist()
    rounds = range(1, len(reference.cohorts) + 1)
    return [[r["client"] for r in rows if (r["round"], r["pass"]) == (n, 1)] for n in rounds]


def state_of(result):
    """The server's tensors in the newest checkpoint."""
    return load_file(max(result.run_dir.glob("checkpoints/*/state.safetensors")))


ORACLES = {
    "qffl": ({"method.q": Q}, lambda of: qffl(of, Q)),
    "qffl-below-one": ({"method.q": 0.3}, lambda of: qffl(of, 0.3)),
    "term": ({"method.t": TILT}, lambda of: term(of, TILT)),
    "afl": ({"method.lr_lambda": STEP, "fraction": 1.0}, lambda of: afl(of, True)),
    "afl-last": (
        {"method.lr_lambda": STEP, "method.deploy": "last", "fraction": 1.0},
        lambda of: afl(of, False),
    ),
    "drfa": (
        {"method.gamma": GAMMA, "method.decay": DECAY, "method.floor": FLOOR},
        lambda of: drfa(of, heard_in(of)),
    ),
}


@pytest.mark.parametrize("stacked", [0, 3])
@pytest.mark.parametrize("oracle", ORACLES)
def test_rounds(tmp_path, oracle, stacked):
    """At partial participation, unequal clients, momentum, decays and a temperature."""
    settings, work_out = ORACLES[oracle]
    name = {"method.name": oracle.partition("-")[0], "engine.vectorize": stacked}
    reference = Reference(tmp_path, {**name, **settings}, MOMENTUM)
    expected, kept = work_out(reference)
    assert_close(reference.result.params, expected)
    state = state_of(reference.result)
    for key, value in kept.items():
        assert np.allclose(state[key], value, rtol=0, atol=1e-6), key


@pytest.mark.parametrize(("method", "off"), [("qffl", "method.q"), ("term", "method.t")])
def test_without_strength_it_is_fedavg_by_uniform_weights(tmp_path, method, off):
    more = {"fraction": 0.6, "local.momentum": 0.9, "local.lr_decay": 0.8, "rounds": 3}
    given = ({"method.name": method, off: 0}, {"weighting": "uniform"})
    runs = [
        raysim.run(
            make_settings(tmp_path / str(n), **more, **each), make_task(SIZES, common.Normed)
        )
        for n, each in enumerate(given)
    ]
    for name, found in runs[0].params.items():
        assert torch.allclose(found, runs[1].params[name], rtol=1e-6, atol=1e-6), name


vectors = st.lists(st.floats(-50, 50), min_size=1, max_size=12).map(np.array)


@given(vectors, st.floats(-1e6, 1e6))
def test_the_projection_is_the_nearest_point_of_the_simplex(values, shift):
    found = projected(values)
    assert found.min() >= 0 and abs(found.sum() - 1) < 1e-12
    assert np.abs(found - on_simplex(values)).max() < 1e-9
    assert np.abs(projected(values + shift) - found).max() < 1e-8
    assert np.abs(projected(found) - found).max() < 1e-12


@pytest.mark.parametrize("method", ["afl", "drfa"])
def test_weights_rise_with_losses_and_stay_on_the_simplex(tmp_path, method):
    """Steps so large that some weights fall to 0."""
    step = {"afl": {"method.lr_lambda": 5.0}, "drfa": {"method.gamma": 5.0, "method.floor": 0.0}}
    settings = {"method.name": method, "fraction": 1.0, "rounds": 3, **step[method]}
    result = raysim.run(make_settings(tmp_path / "run", **settings), make_task(SIZES))
    weights = state_of(result)["lambda/lambda"]
    assert abs(weights.sum() - 1) < 1e-12 and weights.min() == 0 < weights.max()
    assert result.metrics["lambda_max"].to_pylist()[-1] == weights.max()


@pytest.mark.parametrize("method", ["afl", "drfa", "qffl", "term"])
def test_bytes(tmp_path, method):
    """A weight down, a loss or a sum up; DRFA's second model, and its further clients."""
    settings = {"method.name": method, "rounds": 1, "fraction": 1.0}
    result = raysim.run(make_settings(tmp_path / "run", **settings), make_task(SIZES))
    model, m = 4 * sum(t.numel() for t in result.params.values()), len(SIZES)
    expected = {
        "afl": (m * (model + 4), m * (model + 4)),
        "drfa": (m * (2 * model + 4), m * (2 * model + 8)),
        "qffl": (m * (model + 4), m * model),
        "term": (m * (model + 4), m * (model + 4)),
    }
    found = [result.metrics[f"bytes_{way}"].to_pylist()[0] for way in ("up", "down")]
    assert tuple(found) == expected[method]


@pytest.mark.parametrize("method", ["afl", "drfa", "term"])
def test_a_killed_run_goes_on_with_the_same_state(tmp_path, method):
    settings = {"method.name": method, "fraction": 1.0, "rounds": 3, "checkpoint_every": 1}
    task, files = make_task(SIZES), []
    raysim.run(make_settings(tmp_path / "whole", **settings), task)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "killed", **settings), task, StopAfter(2))
    raysim.resume(tmp_path / "killed", task)
    for run in ("whole", "killed"):
        files.append((tmp_path / run / "checkpoints/round_000003/state.safetensors").read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (-100, "takes a power of it, which needs"),
        (0.01, r"^method.q=20: its update is out of range: the losses of all clients are"),
        (1e2, r"method.q=20: its update is out of range: a loss of 100 is too large"),
    ],
)
def test_losses_without_a_power(tmp_path, loss, message):
    scoring = raysim.Scoring(lambda outputs, y: outputs.mean(1) * 0 + loss, {})
    task = raysim.Task(**{**vars(make_task(SIZES)), "scoring": scoring})
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.run(make_settings(tmp_path / "run", **{"method.name": "qffl", "method.q": 20}), task)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"method.name": "qffl", "method.q": -1}, "method.q=-1: must be"),
        ({"method.name": "term", "method.t": -1}, "method.t=-1: must be"),
        ({"method.name": "drfa", "method.floor": 1}, "method.floor=1: must be"),
        (
            {"method.name": "chain", "method.methods": {"term": {}}},
            "method.methods.term: cannot be chained: its round is not FedAvg's",
        ),
    ],
)
def test_bad_settings(tmp_path, overrides, message):
    common.assert_refused(tmp_path, overrides, message)


@pytest.mark.parametrize("method", ["afl", "drfa", "qffl", "term"])
def test_clients_deploy_what_they_trained(tmp_path, method):
    """With `evaluation.when=after`, which fits their samples better than what they received."""
    after = {"evaluation.when": "after", "evaluation.train_set": True}
    settings = {"method.name": method, "fraction": 1.0, "rounds": 1, **after}
    result = raysim.run(make_settings(tmp_path / "run", **settings), make_task(SIZES))
    own, received = (result.metrics[f"{m}train_set_loss"].to_pylist() for m in ("personal_", ""))
    assert own[-1] < received[-1]
