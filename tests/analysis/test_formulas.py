"""Formulas of the analyses, held to values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from raysim.analysis import formulas
from raysim.analysis.layers import layer_outputs
from raysim.analysis.temperature import boundary_distance
from raysim.methods.divide_and_conquer import norm_divergence, weight_divergence
from raysim.numbers.layers import weight_layers
from raysim.numbers.tensors import state_of
from raysim.testing.tasks import SmallLstm, SmallNet


@pytest.fixture
def draws() -> np.random.Generator:
    return np.random.default_rng(0)


def cka(x, y):
    one, other = (formulas.gram(torch.from_numpy(features)).numpy() for features in (x, y))
    return formulas.cka(one, other)


def test_cka_of_rotated_scaled_and_shifted_features_is_1(draws):
    features = draws.normal(size=(50, 8))
    rotation, _ = np.linalg.qr(draws.normal(size=(8, 8)))
    assert cka(features, 3 * features @ rotation + 2) == pytest.approx(1, abs=1e-12)


def test_cka_is_that_of_the_feature_formula(draws):
    x, y = draws.normal(size=(30, 5)), draws.normal(size=(30, 7))
    a, b = x - x.mean(0), y - y.mean(0)
    expected = np.linalg.norm(b.T @ a) ** 2
    expected /= np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)
    assert cka(x.reshape(30, 5, 1), y) == pytest.approx(expected, rel=1e-12)
    assert 0 < expected < 0.5


def test_cka_of_constant_features_is_0(draws):
    assert cka(np.ones((10, 3)), draws.normal(size=(10, 3))) == 0


def test_kl_of_equal_activations_is_0_and_of_others_by_hand():
    half = np.log([0.5, 0.5])
    assert formulas.kl_divergence(half, half) == 0
    other = np.log([0.25, 0.75])
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert formulas.kl_divergence(half, other) == pytest.approx(expected, rel=1e-12)
    certain = np.array([0.0, -np.inf])
    assert formulas.kl_divergence(certain, half) == pytest.approx(math.log(2))


def test_kl_of_activations_far_apart_is_finite():
    far, near = formulas.log_softmax(np.array([[0.0, 1000.0], [0.0, 0.0]]))
    assert formulas.kl_divergence(near, far) == pytest.approx(500 - math.log(2))


def test_log_softmax_by_hand():
    found = formulas.log_softmax(np.array([[0.0, math.log(3)], [1e4, 1e4]], dtype=np.float32))
    assert found == pytest.approx(np.log([[0.25, 0.75], [0.5, 0.5]]), rel=1e-6)


def test_information_of_equal_outputs_is_the_entropy_and_of_independent_ones_near_0(draws):
    labels = draws.integers(0, 4, 20_000)
    equal = formulas.joint_counts(labels, labels)
    assert formulas.mutual_information(equal) == pytest.approx(formulas.entropy(equal))
    assert formulas.entropy(equal) == pytest.approx(math.log(4), abs=1e-3)
    independent = formulas.joint_counts(labels, draws.integers(0, 3, 20_000))
    assert independent.shape == (4, 3)
    assert formulas.mutual_information(independent) < 1e-3


def test_information_by_hand():
    counts = np.array([[2, 0], [1, 1]])
    expected = math.log(2) + (0.75 * math.log(4 / 3) + 0.25 * math.log(4))
    expected -= 0.5 * math.log(2) + 0.5 * math.log(4)
    assert formulas.mutual_information(counts) == pytest.approx(expected, rel=1e-12)


def test_weight_divergence_by_hand():
    network = nn.Module()
    network.features, network.hidden = nn.Identity(), nn.Identity()
    network.head = nn.Linear(2, 1, bias=False)
    [layer] = weight_layers(network)
    before, after = ({"head.weight": torch.tensor([w])} for w in ([3.0, 4.0], [5.0, 0.0]))
    assert weight_divergence(layer, before, after) == pytest.approx((1 - 3 / 5) / 5)
    assert norm_divergence(layer, before, after) == pytest.approx(np.hypot(2, 4) / 5)
    zero = {"head.weight": torch.zeros(1, 2)}
    for divergence in (weight_divergence, norm_divergence):
        assert divergence(layer, before, before) == divergence(layer, zero, after) == 0
    assert (weight_divergence(layer, before, zero), norm_divergence(layer, before, zero)) == (0, 1)


def test_outputs_of_layers_are_those_of_the_modules_alone():
    torch.manual_seed(0)
    network, x = SmallNet(), torch.randn(5, 12)
    tensors = {name: 2 * tensor for name, tensor in state_of(network).items()}
    found = layer_outputs(network.to("meta"), tensors, x)
    assert [*found] == ["hidden.0", "head"]
    first = x @ tensors["hidden.0.weight"].T + tensors["hidden.0.bias"]
    torch.testing.assert_close(found["hidden.0"], first)
    second = first.relu() @ tensors["head.weight"].T + tensors["head.bias"]
    torch.testing.assert_close(found["head"], second)


def test_outputs_of_a_recurrent_layer_are_those_of_all_steps():
    torch.manual_seed(0)
    network, x = SmallLstm(), torch.randint(0, 7, (3, 5))
    found = layer_outputs(network, state_of(network), x)
    expected = network.hidden.lstm(network.features(x))[0].detach()
    torch.testing.assert_close(found["hidden.lstm"], expected)


def test_distance_to_the_boundary_by_hand():
    """Logits 0.3 and x1 + x2 are equal where both inputs fall from 0.2 by 0.05."""

    def logits(x):
        return torch.stack([torch.full((len(x),), 0.3), x.sum(1)], dim=1)

    found = float(boundary_distance(logits, torch.tensor([[0.2, 0.2]])))
    ratio = 10 ** (4 / 99)
    assert 0.05 < found < 0.05 * ratio
    assert float(boundary_distance(logits, torch.tensor([[9.0, 9.0]]))) == 1
