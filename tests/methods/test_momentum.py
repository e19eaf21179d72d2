"""Momentum FedAvg against NumPy: d lives through the rounds and is averaged."""

from __future__ import annotations

import numpy as np
import pytest

from tests.methods import common
from tests.methods.test_oracle import (
    EPOCHS,
    LR,
    NAMES,
    ROUNDS,
    SIZES,
    assert_close,
    gradient,
    run,
)

NAME = {"method.name": "momentum"}


def momentum(w, clients, gamma, weights):
    d = [np.zeros_like(p) for p in w]
    for _ in range(ROUNDS):
        mean_w, mean_d = ([np.zeros_like(p) for p in w] for _ in range(2))
        for (x, y), share in zip(clients, weights, strict=True):
            local, own = w, d
            for _ in range(EPOCHS):
                own = [gamma * v + g for v, g in zip(own, gradient(local, x, y), strict=True)]
                local = [p - LR * v for p, v in zip(local, own, strict=True)]
            mean_w = [m + share * p for m, p in zip(mean_w, local, strict=True)]
            mean_d = [m + share * v for m, v in zip(mean_d, own, strict=True)]
        w, d = mean_w, mean_d
    return w, d


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_two_rounds(tmp_path, weighting):
    from safetensors.numpy import load_file

    overrides = {**NAME, "method.gamma": 0.7, "weighting": weighting}
    result, w, clients = run(tmp_path, **overrides)
    weights = [n / sum(SIZES) if weighting == "examples" else 1 / len(SIZES) for n in SIZES]
    expected_w, expected_d = momentum(w, clients, 0.7, weights)
    assert_close(result.params, expected_w)
    server = load_file(tmp_path / "run/checkpoints/round_000002/state.safetensors")
    assert_close(server, expected_d, [f"d/{name}" for name in NAMES])
    without = momentum(w, clients, 0.0, weights)[0]
    assert np.abs(expected_w[0] - without[0]).max() > 1e-3


def test_without_gamma_it_is_fedavg(tmp_path):
    common.assert_equals_fedavg(tmp_path, {**NAME, "method.gamma": 0})


def test_model_and_momentum_travel_both_ways(tmp_path):
    result, w, _ = run(tmp_path, **NAME)
    size = 4 * sum(p.size for p in w)
    for way in ("bytes_up", "bytes_down"):
        assert result.metrics[way].to_pylist() == [len(SIZES) * 2 * size] * ROUNDS


def test_tiny_clients(tmp_path):
    common.assert_trains_tiny_clients(tmp_path, NAME)


@pytest.mark.parametrize(
    ("gamma", "message"), [(-0.1, "greater than or equal to 0"), (1, "less than 1")]
)
def test_bad_settings(tmp_path, gamma, message):
    expected = f"method.gamma={gamma}: must be {message}"
    common.assert_refused(tmp_path, {**NAME, "method.gamma": gamma}, expected)
