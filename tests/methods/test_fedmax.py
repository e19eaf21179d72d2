"""FedMAX against NumPy: both divergences, their gradients over two rounds, and the edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.api.rules import Batch
from raysim.methods.fedmax import FedMax
from tests.methods import common
from tests.methods.test_oracle import assert_close, fedavg, run

NAME = {"method.name": "fedmax"}
DIRECTIONS = ("u_q", "q_u")


def softmax(a):
    exponents = np.exp(a - a.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)


def derivative(hidden, direction):
    """Of the mean over samples and activations, by hand."""
    q, width = softmax(hidden), hidden.shape[1]
    if direction == "u_q":
        return (q - 1 / width) / hidden.size
    negative_entropy = (q * np.log(q)).sum(1, keepdims=True)
    return q * (np.log(q) - negative_entropy) / hidden.size


def batch(n):
    return Batch(torch.zeros(n, 12), torch.zeros(n, dtype=torch.long))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_penalty_by_loops(direction):
    hidden = np.random.default_rng(1).normal(0, 3, (4, 5)).astype(np.float32)
    q, expected = softmax(hidden.astype(np.float64)), 0.0
    for i in range(4):
        for j in range(5):
            pair = (1 / 5, q[i, j]) if direction == "u_q" else (q[i, j], 1 / 5)
            expected += pair[0] * np.log(pair[0] / pair[1]) / 20
    penalty = common.penalty_of(FedMax(beta=1500.0, direction=direction))
    found = penalty(torch.from_numpy(hidden), torch.zeros(4, 3), batch(4))
    assert float(found) == pytest.approx(1500 * expected, rel=1e-5)


def test_uniform_activations_cost_nothing_and_the_penalty_is_never_negative():
    for direction in DIRECTIONS:
        penalty = common.penalty_of(FedMax(direction=direction))
        assert abs(float(penalty(torch.full((3, 7), 2.0), None, batch(3)))) < 1e-3
        assert float(penalty(torch.eye(3, 7), None, batch(3))) > 0
        # An activation that leaves q = 0 elsewhere, as 0 log 0 does not arise.
        far = torch.tensor([[1e4, 0.0, 0.0]], requires_grad=True)
        (gradient,) = torch.autograd.grad(penalty(far, None, batch(1)), far)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_rounds(tmp_path, direction):
    overrides = {**NAME, "method.beta": 30.0, "method.direction": direction}
    result, w, clients = run(tmp_path, **overrides)

    def penalty(local, start, x):
        hidden, _ = common.outputs(local, x)
        return common.pull_back(local, x, 30 * derivative(hidden, direction))

    expected = fedavg(w, clients, penalty=penalty)
    assert_close(result.params, expected)
    without = fedavg(w, clients)
    assert np.abs(expected[0] - without[0]).max() > 1e-3


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_penalty_runs_under_vmap(direction):
    penalty = common.penalty_of(FedMax(direction=direction))
    common.assert_vmaps(lambda hidden: penalty(hidden, None, batch(4)), (3, 4, 5))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_without_beta_it_is_fedavg(tmp_path, direction):
    common.assert_equals_fedavg(tmp_path, {**NAME, "method.beta": 0, "method.direction": direction})


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_tiny_clients(tmp_path, direction):
    common.assert_trains_tiny_clients(tmp_path, {**NAME, "method.direction": direction})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"method.beta": -1}, "method.beta=-1: must be greater than or equal to 0"),
        ({"method.direction": "qu"}, "method.direction=\"qu\": must be 'u_q' or 'q_u'"),
    ],
)
def test_bad_settings(tmp_path, overrides, message):
    common.assert_refused(tmp_path, NAME | overrides, message)


def test_model_without_activations(tmp_path):
    common.assert_refused(
        tmp_path, NAME, "fedmax: needs .*lacks features, hidden", common.Stageless
    )
