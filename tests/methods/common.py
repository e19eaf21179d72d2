"""Helpers of the tests of single methods: a NumPy network to check against, and checks on runs.

The NumPy network is SmallNet in float64: w = [w1, b1, w2, b2].
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import nn

import raysim
from raysim.api.rules import Outputs, View
from raysim.testing import contract
from raysim.testing.tasks import SmallNet
from tests.tasks import EQUAL, UNEQUAL, make_settings, make_task


def outputs(w, x):
    """The activations and the logits."""
    w1, b1, w2, b2 = w
    hidden = np.maximum(x @ w1.T + b1, 0)
    return hidden, hidden @ w2.T + b2


def pull_back(w, x, d_hidden=0.0, d_logits=None):
    """The weights' gradient of a function with these derivatives at activations and logits."""
    hidden, logits = outputs(w, x)
    d_logits = np.zeros_like(logits) if d_logits is None else d_logits
    back = (d_hidden + d_logits @ w[2]) * (hidden > 0)
    return [back.T @ x, back.sum(0), d_logits.T @ hidden, d_logits.sum(0)]


def penalty_of(method, frozen=None):
    """A method's penalty as a function of (hidden, logits, batch), the frozen logits given."""
    view = View(
        params={},
        trainable=[],
        start={},
        broadcast={"model": {}},
        state={},
        personal={},
        generator=None,
        at=lambda tensors, x: Outputs(None, None, frozen),
        gradient=None,
    )
    (penalty,) = method.rules().penalties
    return lambda hidden, logits, batch: penalty(view, Outputs(None, hidden, logits), batch)


def assert_vmaps(function, shape):
    """A function of one tensor gives the same gradient for a stack of them and one by one."""
    stacked = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    gradient = torch.func.grad(function)
    one_by_one = torch.stack([gradient(tensor) for tensor in stacked])
    assert torch.allclose(torch.func.vmap(gradient)(stacked), one_by_one, atol=1e-7)
    assert one_by_one.abs().max() > 1e-4


def assert_equals_fedavg(tmp_path, overrides):
    """The deployed model's file has the same bytes."""
    task = make_task(UNEQUAL)
    plain = raysim.run(make_settings(tmp_path / "plain"), task)
    other = raysim.run(make_settings(tmp_path / "other", **overrides), task)
    files = [result.run_dir / "model.safetensors" for result in (plain, other)]
    assert files[0].read_bytes() == files[1].read_bytes()


def assert_buffers_become_the_mean(tmp_path, overrides):
    """After one round BatchNorm's statistics are FedAvg's, though the parameters are not."""
    runs = []
    for number, changes in enumerate(({}, overrides)):
        settings = make_settings(tmp_path / str(number), rounds=1, **changes)
        runs.append(raysim.run(settings, make_task(EQUAL, Normed)).params)
    same = {name for name, plain in runs[0].items() if torch.equal(plain, runs[1][name])}
    buffers = {name for name, _ in Normed().named_buffers()}
    assert same & {*buffers, "head.weight"} == buffers


def assert_trains_tiny_clients(tmp_path, overrides, model=None):
    """Clients of 1 sample and of B+1 train, and nothing is infinite or out of all proportion."""
    sizes = (1, 9)
    task = make_task(sizes, model) if model else make_task(sizes)
    base = {"rounds": 20, "fraction": 1.0, "local.epochs": 3}
    result = raysim.run(make_settings(tmp_path / "tiny", **base | overrides), task)
    for name in ("train_loss", "objective", "test_loss"):
        assert np.isfinite(result.metrics[name].to_numpy()).all(), name
    assert all(t.isfinite().all() and t.abs().max() < 100 for t in result.params.values())


def assert_refused(tmp_path, overrides, message, model=None):
    """A setting is refused before round 1, with its name, its value and what is allowed."""
    with pytest.raises(raysim.SettingsError, match=message):
        settings = make_settings(tmp_path / "refused", **overrides)
        raysim.run(settings, make_task((5,), model) if model else make_task((5,)))
    assert not (tmp_path / "refused").exists()


def newest_states(run_dir):
    """The newest state of each client that took part."""
    return {int(client): load(kept) for client, kept in contract.newest_states(run_dir).items()}


class Stageless(nn.Sequential):
    """A network without the three stages."""

    def __init__(self):
        super().__init__(nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 3))


class Normed(SmallNet):
    """SmallNet with BatchNorm, whose statistics are buffers."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU())
