"""Activation L2 against NumPy: both norms, their gradients over two rounds, and the edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.api.rules import Batch
from raysim.methods.activation_l2 import ActivationL2
from tests.methods import common
from tests.methods.test_oracle import assert_close, fedavg, run

NAME = {"method.name": "activation_l2"}
FORMS = (False, True)


def derivative(hidden, per_sample):
    if not per_sample:
        return hidden / np.sqrt((hidden**2).sum())
    norms = np.sqrt((hidden**2).sum(1, keepdims=True))
    return np.where(norms > 0, hidden / np.where(norms > 0, norms, 1), 0) / len(hidden)


def batch(n):
    return Batch(torch.zeros(n, 12), torch.zeros(n, dtype=torch.long))


@pytest.mark.parametrize(("per_sample", "expected"), [(False, 26**0.5), (True, (5 + 1) / 3)])
def test_penalty_by_hand(per_sample, expected):
    hidden = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    penalty = common.penalty_of(ActivationL2(beta=0.5, per_sample=per_sample))
    assert float(penalty(hidden, None, batch(3))) == pytest.approx(0.5 * expected, rel=1e-6)


@pytest.mark.parametrize("per_sample", FORMS)
def test_gradient_at_zero_is_zero(per_sample):
    hidden = torch.zeros(3, 4, requires_grad=True)
    penalty = common.penalty_of(ActivationL2(per_sample=per_sample))
    (gradient,) = torch.autograd.grad(penalty(hidden, None, batch(3)), hidden)
    assert torch.equal(gradient, torch.zeros(3, 4))


@pytest.mark.parametrize("per_sample", FORMS)
def test_two_rounds(tmp_path, per_sample):
    overrides = {**NAME, "method.beta": 0.3, "method.per_sample": per_sample}
    result, w, clients = run(tmp_path, **overrides)

    def penalty(local, start, x):
        hidden, _ = common.outputs(local, x)
        return common.pull_back(local, x, 0.3 * derivative(hidden, per_sample))

    expected = fedavg(w, clients, penalty=penalty)
    assert_close(result.params, expected)
    without = fedavg(w, clients)
    assert np.abs(expected[0] - without[0]).max() > 1e-3


@pytest.mark.parametrize("per_sample", FORMS)
def test_penalty_runs_under_vmap(per_sample):
    penalty = common.penalty_of(ActivationL2(beta=1.0, per_sample=per_sample))
    common.assert_vmaps(lambda hidden: penalty(hidden, None, batch(4)), (3, 4, 5))


@pytest.mark.parametrize("per_sample", FORMS)
def test_without_beta_it_is_fedavg(tmp_path, per_sample):
    common.assert_equals_fedavg(
        tmp_path, {**NAME, "method.beta": 0, "method.per_sample": per_sample}
    )


@pytest.mark.parametrize("per_sample", FORMS)
def test_tiny_clients(tmp_path, per_sample):
    overrides = {**NAME, "method.beta": 1.0, "method.per_sample": per_sample}
    common.assert_trains_tiny_clients(tmp_path, overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"method.beta": -0.1}, "method.beta=-0.1: must be greater than or equal to 0"),
        ({"method.per_sample": 3}, "method.per_sample=3: must be a valid boolean"),
    ],
)
def test_bad_settings(tmp_path, overrides, message):
    common.assert_refused(tmp_path, NAME | overrides, message)


def test_model_without_activations(tmp_path):
    common.assert_refused(
        tmp_path, NAME, "activation_l2: needs .*lacks features, hidden", common.Stageless
    )
