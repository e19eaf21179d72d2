"""Models: parameter counts, stages, shapes, initialisation."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch import nn

import workloads  # noqa: F401 - registers names
from raysim.core.data import MODELS
from raysim.core.errors import SettingsError
from workloads.models.cnn import MnistCnn, MnistCnn128
from workloads.models.mlp import TwoNN

torch.set_num_threads(1)

MNIST = (1, 28, 28)
# name, parameters, shape of features, width of hidden
NETWORKS = [
    ("2nn", 199_210, (200,), 200),
    ("mnist-cnn-128", 454_922, (64, 7, 7), 128),
    ("mnist-cnn", 1_663_370, (64, 7, 7), 512),
]


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS.get(name)().build(MNIST, 10)


@pytest.mark.parametrize(("name", "parameters"), [row[:2] for row in NETWORKS])
def test_parameter_counts_are_the_published_ones(name: str, parameters: int) -> None:
    assert sum(p.numel() for p in built(name).parameters()) == parameters


@pytest.mark.parametrize(("name", "features", "hidden"), [(n, f, h) for n, _, f, h in NETWORKS])
def test_stages_have_their_shapes_and_compose_to_the_forward(
    name: str, features: tuple[int, ...], hidden: int
) -> None:
    model = built(name).eval()
    x = torch.rand(3, *MNIST)
    first = model.features(x)
    second = model.hidden(first)
    logits = model.head(second)
    assert first.shape == (3, *features)
    assert second.shape == (3, hidden)
    assert logits.shape == (3, 10)
    assert torch.equal(model(x), logits)


@pytest.mark.parametrize("name", [row[0] for row in NETWORKS])
def test_hidden_ends_at_the_input_of_the_last_layer(name: str) -> None:
    model = built(name)
    assert {child for child, _ in model.named_children()} == {"features", "hidden", "head"}
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert list(model.head) == linear[-1:]


@pytest.mark.parametrize("name", [row[0] for row in NETWORKS])
def test_weights_start_as_pytorch_initialises_them(name: str) -> None:
    for module in built(name).modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(module.weight[0].numel())
            assert module.weight.abs().max() <= bound
            assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("name", [row[0] for row in NETWORKS])
def test_other_shapes_and_classes(name: str) -> None:
    model = MODELS.get(name)().build((3, 33, 30), 26).eval()
    assert model(torch.rand(2, 3, 33, 30)).shape == (2, 26)


def test_dropout_acts_in_training_only_and_can_be_turned_off() -> None:
    x = torch.rand(2, *MNIST)
    hidden = built("mnist-cnn").train()
    zeros = (hidden.hidden(hidden.features(x)) == 0).float().mean()
    plain = MnistCnn(dropout=0.0).build(MNIST, 10).train()
    assert not any(isinstance(module, nn.Dropout) for module in plain.modules())
    assert zeros > (plain.hidden(plain.features(x)) == 0).float().mean() + 0.1
    assert torch.equal(hidden.eval()(x), hidden(x))
    with pytest.raises(ValidationError):
        MnistCnn(dropout=1.0)


@pytest.mark.parametrize("shape", [(784,), (1, 3, 28)])
def test_convolutions_need_images(shape: tuple[int, ...]) -> None:
    expected = r"model\.name=mnist-cnn-128: the dataset's inputs have shape"
    with pytest.raises(SettingsError, match=expected):
        MnistCnn128().build(shape, 10)


def test_the_perceptron_takes_any_shape() -> None:
    assert TwoNN().build((1473,), 2)(torch.rand(4, 1473)).shape == (4, 2)
