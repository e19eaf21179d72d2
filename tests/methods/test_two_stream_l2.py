"""Two-stream L2 against NumPy: distances of outputs and of weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.api.rules import Batch, View
from raysim.methods.two_stream_l2 import TwoStreamL2
from tests.methods import common
from tests.methods.test_oracle import assert_close, fedavg, run

NAME = {"method.name": "two_stream_l2"}
SPACES = ("outputs", "weights")
BATCH = Batch(torch.zeros(2, 12), torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize(
    ("reduction", "weights", "distance"),
    [
        ("sum", None, (25 + 1) / 2),
        ("mean", None, (25 + 1) / 2),
        ("sum", [1.0, 0.0], 25 / 2),
        ("mean", [1.0, 0.0], 25),
        ("mean", [0.0, 1.0], 1),
    ],
)
def test_distance_of_outputs_by_hand(reduction, weights, distance):
    """Half the sum over real rows, never divided by their number; or their mean, not halved."""
    frozen, local = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[4.0, 6.0], [1.0, 0.0]])
    penalty = common.penalty_of(TwoStreamL2(lam=0.5, reduction=reduction), frozen)
    batch = BATCH._replace(weights=None if weights is None else torch.tensor(weights))
    assert float(penalty(None, local, batch)) == pytest.approx(0.5 * distance)


def test_distance_of_weights_by_hand():
    """Over all trainable parameters, the sum and not the mean; buffers do not count."""
    start = {"w": torch.zeros(2, 2), "b": torch.ones(1), "mean": torch.zeros(3)}
    live = {"w": torch.full((2, 2), 2.0), "b": torch.tensor([4.0]), "mean": torch.ones(3)}
    view = View(live, ["w", "b"], start, {"model": start}, {}, {}, None, at=None, gradient=None)
    (transform,) = TwoStreamL2(lam=0.5, space="weights").rules().transforms
    gradients = {name: torch.zeros_like(live[name]) for name in view.trainable}
    _, state = transform.update(view, gradients, BATCH, transform.init(view))
    assert float(state[transform.term]) == pytest.approx(0.5 * (4 * 4 + 9))


@pytest.mark.parametrize(
    ("space", "reduction"), [("outputs", "sum"), ("outputs", "mean"), ("weights", "sum")]
)
def test_two_rounds(tmp_path, space, reduction):
    lam = 0.6 if reduction == "mean" or space == "weights" else 0.03
    own = {"method.lam": lam, "method.space": space, "method.reduction": reduction}
    result, w, clients = run(tmp_path, **NAME, **own)

    def penalty(local, start, x):
        if space == "weights":
            return [2 * lam * (p - s) for p, s in zip(local, start, strict=True)]
        frozen, logits = (common.outputs(weights, x)[1] for weights in (start, local))
        factor = 2 / len(x) if reduction == "mean" else 1
        return common.pull_back(local, x, d_logits=lam * factor * (logits - frozen))

    expected = fedavg(w, clients, penalty=penalty)
    assert_close(result.params, expected)
    without = fedavg(w, clients)
    assert np.abs(expected[0] - without[0]).max() > 1e-3


def test_penalty_runs_under_vmap():
    penalty = common.penalty_of(TwoStreamL2(), torch.zeros(2, 3))
    common.assert_vmaps(lambda logits: penalty(None, logits, BATCH), (4, 2, 3))


@pytest.mark.parametrize("space", SPACES)
def test_without_lam_it_is_fedavg(tmp_path, space):
    common.assert_equals_fedavg(tmp_path, {**NAME, "method.lam": 0, "method.space": space})


@pytest.mark.parametrize("space", SPACES)
def test_tiny_clients(tmp_path, space):
    common.assert_trains_tiny_clients(tmp_path, {**NAME, "method.space": space})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"method.lam": -1}, "method.lam=-1: must be greater than or equal to 0"),
        ({"method.space": "x"}, "method.space=\"x\": must be 'outputs' or 'weights'"),
        (
            {"method.space": "weights", "method.reduction": "mean"},
            "^method.reduction=mean: must be sum with method.space=weights",
        ),
        ({"method.reduction": "x"}, "method.reduction=\"x\": must be 'sum' or 'mean'"),
    ],
)
def test_bad_settings(tmp_path, overrides, message):
    common.assert_refused(tmp_path, NAME | overrides, message)
