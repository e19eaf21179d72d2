"""MOON against NumPy: representations with and without the projection, and pools of models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import raysim
from raysim.api.rules import Batch, Outputs, View
from raysim.methods.moon import Moon
from raysim.testing.tasks import SmallNet
from tests.methods.reference import SIZES, Reference, T
from tests.methods.test_oracle import assert_close, start_of
from tests.tasks import make_settings, make_task

MU, TAU, WIDTH = 0.8, 0.3, 6
NAME = {"method.name": "moon", "method.mu": MU, "method.tau": TAU, "method.projection": None}


class Projected(SmallNet):
    """SmallNet with the projection that MOON puts before the head."""

    def __init__(self):
        super().__init__()
        added = torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, WIDTH)
        self.hidden = torch.nn.Sequential(self.hidden, *added)
        self.head = torch.nn.Linear(WIDTH, 3)


NAMES = {
    0: ("hidden.0.weight", "hidden.0.bias", "head.weight", "head.bias"),
    WIDTH: (
        *("hidden.0.0.weight", "hidden.0.0.bias", "hidden.1.weight", "hidden.1.bias"),
        *("hidden.3.weight", "hidden.3.bias", "head.weight", "head.bias"),
    ),
}
"""Weights of the network by the width of its projection, in forward order."""


def layers_of(w, x):
    """The input of each layer; all but those before the last two of a projection have a ReLU."""
    inputs = [x]
    for number, (weight, bias) in enumerate(zip(w[:-2:2], w[1:-2:2], strict=True)):
        z = inputs[-1] @ weight.T + bias
        inputs.append(z if number == 2 else np.maximum(z, 0))
    return inputs


def representation(w, x):
    return layers_of(w, x)[-1]


def contrast_slope(z, others):
    """The derivative by z [B, F] of the mean contrast to others, the global one first."""
    norm = np.linalg.norm(z, axis=1, keepdims=True)
    cosines, slopes = [], []
    for o in others:
        scale = norm * np.linalg.norm(o, axis=1, keepdims=True)
        cosine = (z * o).sum(1, keepdims=True) / scale
        cosines.append(cosine / TAU)
        slopes.append((o / scale - cosine * z / norm**2) / TAU)
    p = np.exp(np.concatenate(cosines, 1))
    p /= p.sum(1, keepdims=True)
    p[:, 0] -= 1
    return sum(p[:, [j]] * slope for j, slope in enumerate(slopes)) / len(z)


def slope_of(others):
    """The gradient of the objective, given the models that z is compared with."""

    def slope(w, x, y):
        inputs = layers_of(w, x)
        logits = (inputs[-1] @ w[-2].T + w[-1]) / T
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        d_logits = (p - np.eye(3)[y]) / (len(y) * T)
        back = d_logits @ w[-2]
        back = back + MU * contrast_slope(inputs[-1], [representation(o, x) for o in others])
        found = [d_logits.T @ inputs[-1], d_logits.sum(0)]
        for number in reversed(range(len(w) // 2 - 1)):
            back = back if number == 2 else back * (inputs[number + 1] > 0)
            found = [back.T @ inputs[number], back.sum(0), *found]
            back = back @ w[2 * number]
        return found

    return slope


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize(("width", "pool"), [(0, 1), (WIDTH, 2)])
def test_rounds(tmp_path, width, pool, stacked):
    """Layers of the projection are drawn at random, so they are read from the first checkpoint."""
    given = {**NAME, "method.projection": width or None, "method.pool": pool}
    names, first = NAMES[width], {}

    def first_weights(task):
        if not width:
            return start_of(task)
        return [first[name].double().numpy() for name in names]

    settings = {**given, "engine.vectorize": stacked, "checkpoint_every": 1, "rounds": 4}
    if width:
        begun = make_settings(tmp_path / "first", **given, rounds=1, **{"local.lr": 1e-30})
        first |= raysim.run(begun, make_task(SIZES)).params
    run = Reference(tmp_path, settings, first=first_weights)
    w, kept = run.start, {}
    for number, cohort in enumerate(run.cohorts):
        ends = []
        for k in cohort:
            previous = kept.get(k, [run.start])
            ends.append(run.train(w, number, k, slope_of([w, *previous])))
            kept[k] = [*previous, ends[-1]][-pool:]
        w = run.mean(cohort, ends)
    assert_close(run.result.params, w, names)
    assert max(map(len, kept.values())) == pool and sum(map(len, run.cohorts)) > len(kept)
    files = sorted((run.result.run_dir / "clients").glob("*/*/*.safetensors"))
    newest = {int(path.parent.name): load_file(path) for path in files}
    for k, models in kept.items():
        for number, model in enumerate(models):
            state = {n: newest[k][f"previous_{number}/{n}"] for n in names}
            assert_close(state, model, names)


def test_without_strength_it_is_fedavg_on_its_network(tmp_path):
    """The network of a task starts with the very weights that the projection is given."""
    given = {"method.name": "moon", "method.mu": 0, "method.projection": WIDTH}
    begun = make_settings(tmp_path / "first", **given, rounds=1, **{"local.lr": 1e-30})
    model = Projected()
    model.load_state_dict(raysim.run(begun, make_task(SIZES)).params)
    plain = raysim.run(make_settings(tmp_path / "plain"), make_task(SIZES, lambda: model))
    found = raysim.run(make_settings(tmp_path / "moon", **given), make_task(SIZES))
    for name, tensor in plain.params.items():
        assert torch.equal(found.params[name], tensor), name


def test_a_representation_of_zeros_has_no_slope():
    """As a stage that ends in a ReLU may give; its cosine with anything is 0."""
    z = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    view = View(
        params={},
        trainable=[],
        start={"z": torch.tensor([[1.0, 0.0], [1.0, 0.0]])},
        broadcast={},
        state={"previous_0": {"z": torch.tensor([[0.0, 1.0], [0.0, 1.0]])}},
        personal={},
        generator=None,
        at=lambda tensors, x: Outputs(None, tensors["z"], None),
        gradient=None,
    )
    (penalty,) = Moon(mu=2, tau=1).rules().penalties
    value = penalty(view, Outputs(None, z, None), Batch(z, torch.zeros(2)))
    value.backward()
    one, two = np.exp(1 / np.sqrt(5)), np.exp(2 / np.sqrt(5))
    assert value.item() == pytest.approx(np.log(2) - np.log(one / (one + two)), rel=1e-6)
    assert not z.grad[0].any() and z.grad[1].all()
