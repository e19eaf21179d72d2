"""Two full-batch rounds of each method against a computation in NumPy.

The oracle is written from the papers' formulas in float64 and shares no code with the engine.
"""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

import raysim
from tests.tasks import UNEQUAL, make_settings, make_task

SIZES = (3, 40, 17, 8)
NAMES = ("hidden.0.weight", "hidden.0.bias", "head.weight", "head.bias")
LR, EPOCHS, ROUNDS = 0.1, 2, 2


def gradient(w, x, y, temperature=1.0):
    """The gradient of the mean cross-entropy of fully connected layers with ReLU between them.

    The weights are w = [weight, bias, weight, bias, ...].
    """
    inputs = [x]
    for weight, bias in zip(w[:-2:2], w[1:-2:2], strict=True):
        inputs.append(np.maximum(inputs[-1] @ weight.T + bias, 0))
    logits = (inputs[-1] @ w[-2].T + w[-1]) / temperature
    exponents = np.exp(logits - logits.max(1, keepdims=True))
    back = exponents / exponents.sum(1, keepdims=True)
    back[np.arange(len(y)), y] -= 1
    back /= len(y) * temperature
    result = []
    for before, weight in zip(reversed(inputs), reversed(w[::2]), strict=True):
        result = [back.T @ before, back.sum(0), *result]
        back = (back @ weight) * (before > 0)
    return result


def fedavg(w, clients, temperature=1.0, penalty=None):
    """Full-batch FedAvg, with a penalty's gradient at (local weights, broadcast weights, x)."""
    total = sum(len(y) for _, y in clients)
    for _ in range(ROUNDS):
        mean = [np.zeros_like(p) for p in w]
        for x, y in clients:
            local = [p.copy() for p in w]
            for _ in range(EPOCHS):
                g = gradient(local, x, y, temperature)
                if penalty:
                    g = [d + extra for d, extra in zip(g, penalty(local, w, x), strict=True)]
                local = [p - LR * d for p, d in zip(local, g, strict=True)]
            mean = [m + len(y) / total * p for m, p in zip(mean, local, strict=True)]
        w = mean
    return w


def proximal(mu):
    """The gradient of FedProx's term mu/2 ||w - w_start||^2."""
    return lambda local, start, x: [mu * (p - q) for p, q in zip(local, start, strict=True)]


def scaffold(w, clients, lr_global, cohorts=None):
    """Full-batch SCAFFOLD over the cohorts of its rounds; None takes all clients in each."""
    c = [np.zeros_like(p) for p in w]
    variates = [[np.zeros_like(p) for p in w] for _ in clients]
    for cohort in cohorts or [range(len(clients))] * ROUNDS:
        step, change = ([np.zeros_like(p) for p in w] for _ in range(2))
        share = 1 / len(cohort)
        for k in cohort:
            x, y = clients[k]
            local = [p.copy() for p in w]
            for _ in range(EPOCHS):
                g = gradient(local, x, y)
                local = [
                    p - LR * (d - own + all_)
                    for p, d, own, all_ in zip(local, g, variates[k], c, strict=True)
                ]
            new = [
                own - all_ + (start - p) / (EPOCHS * LR)
                for own, all_, start, p in zip(variates[k], c, w, local, strict=True)
            ]
            step = [s + share * (p - start) for s, p, start in zip(step, local, w, strict=True)]
            change = [
                d + share * (n - own) for d, n, own in zip(change, new, variates[k], strict=True)
            ]
            variates[k] = new
        w = [p + lr_global * s for p, s in zip(w, step, strict=True)]
        c = [v + len(cohort) / len(clients) * d for v, d in zip(c, change, strict=True)]
    return w, c, variates


def run(tmp_path, sizes=SIZES, **overrides):
    task = make_task(sizes)
    settings = make_settings(
        tmp_path / "run",
        **{
            "rounds": ROUNDS,
            "fraction": 1.0,
            "local.epochs": EPOCHS,
            "local.batch_size": "full",
            "local.lr": LR,
            **overrides,
        },
    )
    start = start_of(task)
    clients = [(x.astype(np.float64), y) for x, y in task.clients]
    return raysim.run(settings, task), start, clients


def start_of(task, names=NAMES):
    from raysim.federation.task import from_task

    parameters = dict(from_task(task).network(0).named_parameters())
    return [parameters[name].detach().numpy().astype(np.float64) for name in names]


def assert_close(params, expected, names=NAMES):
    """Every tensor is the one worked out, to 1e-5, and to 1e-5 of its greatest value."""
    for name, value in zip(names, expected, strict=True):
        error = np.abs(np.asarray(params[name]) - value).max()
        assert error < 1e-5 * min(1, np.abs(value).max()), f"{name}: {error:.2g}"


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_fedavg(tmp_path, temperature):
    result, w, clients = run(tmp_path, **{"local.temperature": temperature})
    assert_close(result.params, fedavg(w, clients, temperature=temperature))


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_fedprox(tmp_path, temperature):
    result, w, clients = run(
        tmp_path,
        **{"method.name": "fedprox", "method.mu": 0.7, "local.temperature": temperature},
    )
    assert_close(result.params, fedavg(w, clients, temperature, proximal(0.7)))


@pytest.mark.parametrize("lr_global", [1.0, 0.5])
def test_scaffold(tmp_path, lr_global):
    overrides = {"method.name": "scaffold", "method.lr_global": lr_global}
    result, w, clients = run(tmp_path, **overrides)
    assert_close(result.params, scaffold(w, clients, lr_global)[0])


def test_fedprox_objective_with_means_by_tensor(tmp_path):
    """After a step of one client by lr * g, g the gradient at its start."""
    overrides = {"method.name": "fedprox", "method.mu": 6.0, "method.reduction": "mean"}
    result, w, clients = run(tmp_path, (40,), rounds=1, **overrides)
    moved = [LR * g for g in gradient(w, *clients[0])]
    term = 3 * sum((m**2).mean() for m in moved)
    gap = result.metrics["objective"][0].as_py() - result.metrics["train_loss"][0].as_py()
    assert gap == pytest.approx(term / EPOCHS, rel=1e-4)


def test_scaffold_moves_c_by_the_part_of_clients_that_took_part(tmp_path):
    overrides = {"method.name": "scaffold", "rounds": 4, "fraction": 0.5}
    result, w, clients = run(tmp_path, **overrides)
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    cohorts = [[r["client"] for r in rows if r["round"] == n] for n in range(1, 5)]
    assert all(len(cohort) == 2 for cohort in cohorts) and len({*map(tuple, cohorts)}) > 1
    assert_close(result.params, scaffold(w, clients, 1.0, cohorts)[0])


def test_fedprox_objective_holds_the_proximal_term(tmp_path):
    result, _, _ = run(tmp_path, **{"method.name": "fedprox", "method.mu": 5.0})
    loss, objective = (result.metrics[name].to_pylist() for name in ("train_loss", "objective"))
    assert all(o > t for o, t in zip(objective, loss, strict=True))


def test_uniform_weighting_counts_clients_alike(tmp_path):
    same, w, clients = run(tmp_path, **{"weighting": "uniform", "rounds": 1})
    mean = [np.zeros_like(p) for p in w]
    for x, y in clients:
        local = w
        for _ in range(EPOCHS):
            local = [p - LR * g for p, g in zip(local, gradient(local, x, y), strict=True)]
        mean = [m + p / len(clients) for m, p in zip(mean, local, strict=True)]
    assert_close(same.params, mean)


@pytest.mark.parametrize("nesterov", [False, True])
def test_lr_decay_momentum_and_weight_decay(tmp_path, nesterov):
    """Momentum starts anew every round, as the velocity v <- 0.9 v + g + wd w.

    Nesterov's step is along g + wd w + 0.9 v, with the new v.
    """
    overrides = {
        "local.nesterov": nesterov,
        "local.lr_decay": 0.5,
        "local.momentum": 0.9,
        "local.weight_decay": 0.01,
        "local.epochs": 3,
    }
    result, w, clients = run(tmp_path, (25,), **overrides)
    x, y = clients[0]
    for number in range(ROUNDS):
        velocity = [np.zeros_like(p) for p in w]
        for _ in range(3):
            g = [d + 0.01 * p for d, p in zip(gradient(w, x, y), w, strict=True)]
            velocity = [0.9 * v + d for v, d in zip(velocity, g, strict=True)]
            ahead = [d + 0.9 * v for d, v in zip(g, velocity, strict=True)]
            step = ahead if nesterov else velocity
            w = [p - LR * 0.5**number * s for p, s in zip(w, step, strict=True)]
    assert_close(result.params, w)


def test_scaffold_c_is_the_mean_of_all_client_variates(tmp_path):
    from safetensors.numpy import load_file

    task = make_task(UNEQUAL)
    settings = make_settings(tmp_path / "run", **{"method.name": "scaffold", "fraction": 1.0})
    raysim.run(settings, task)
    server = load_file(tmp_path / "run/checkpoints/round_000003/state.safetensors")
    newest = [load_file(p) for p in (tmp_path / "run/clients").glob("*/*/2_0.safetensors")]
    assert len(newest) == len(UNEQUAL)
    for name in NAMES:
        mean = np.mean([state[f"c/{name}"].astype(np.float64) for state in newest], axis=0)
        assert np.abs(server[f"c/{name}"] - mean).max() < 1e-6
        assert np.abs(mean).max() > 1e-3


def test_scaffold_logs_the_norms_of_all_control_variates(tmp_path):
    result, w, clients = run(tmp_path, **{"method.name": "scaffold"})
    _, c, variates = scaffold(w, clients, 1.0)

    def norm(tensors):
        return np.sqrt(sum((tensor**2).sum() for tensor in tensors))

    assert result.metrics["c_norm"].to_pylist()[-1] == pytest.approx(norm(c), rel=1e-4)
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    logged = {row["client"]: row["c_norm"] for row in rows if row["round"] == ROUNDS}
    assert logged == pytest.approx({k: norm(v) for k, v in enumerate(variates)}, rel=1e-4)
