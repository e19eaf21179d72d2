"""Models: parameter counts, stages, weight layers, shapes, initialisation."""

import math

import pytest
import torch
from pydantic import ValidationError
from scipy.stats import truncnorm
from torch import Tensor, nn

import raysim.workloads  # noqa: F401 - registers names
from raysim.errors import SettingsError
from raysim.numbers.layers import misplaced, weight_layers
from raysim.samples.data import MODELS
from raysim.workloads.models.cnn import CifarCnn2, CifarCnn5, MnistCnn, Vgg9
from raysim.workloads.models.mlp import TwoNN

torch.set_num_threads(1)

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
# name, input shape, classes, parameters, shape of features, width of hidden, weight layers
NETWORKS = {
    "linear": (MNIST, 10, 7850, (784,), 784, 1),
    "2nn": (MNIST, 10, 199_210, (200,), 200, 3),
    "mnist-cnn-128": (MNIST, 10, 454_922, (64, 7, 7), 128, 4),
    "mnist-cnn": (MNIST, 10, 1_663_370, (64, 7, 7), 512, 4),
    "cifar-cnn-3": (CIFAR, 10, 122_570, (64, 4, 4), 64, 5),
    "cifar-cnn-5": (CIFAR, 10, 659_818, (64, 4, 4), 512, 7),
    "cifar-cnn-2": (CIFAR, 10, 1_756_426, (64, 8, 8), 192, 5),
    "flexchill-cnn": (CIFAR, 10, 136_606, (20, 5, 5), 256, 4),
    "pfl-cifar-cnn": (CIFAR, 10, 1_626_442, (64, 14, 14), 128, 4),
    "flexchill-dnn": (MNIST, 62, 574_142, (512,), 128, 4),
    "vgg9": (CIFAR, 10, 3_491_530, (256, 4, 4), 512, 9),
    "char-lstm": ((80,), 80, 293_584, (80, 8), 256, 3),
    "3nn-mimic": ((1473,), 2, 320_001, (200,), 50, 4),
    "synthetic-mlp": ((1024,), 10, 529_930, (512,), 512, 2),
    "by-shape": (CIFAR, 10, 188_810, (64, 4, 4), 128, 5),
    "resnet18": (CIFAR, 100, 11_227_812, (512, 1, 1), 512, 21),
    "resnet50": ((3, 64, 64), 1000, 25_557_032, (2048, 2, 2), 2048, 54),
}
every_network = pytest.mark.parametrize("name", NETWORKS)
FULLY_CONNECTED = ("linear", "2nn", "flexchill-dnn", "3nn-mimic", "synthetic-mlp")
IMAGES_OF = {
    "mnist-cnn-128": 4,
    "mnist-cnn": 4,
    "cifar-cnn-3": 8,
    "cifar-cnn-5": 8,
    "cifar-cnn-2": 1,
    "flexchill-cnn": 16,
    "pfl-cifar-cnn": 6,
    "vgg9": 8,
    "resnet18": 32,
    "resnet50": 32,
}
"""The smallest images that a network takes, in pixels on a side."""


def built(name: str, seed: int = 0, **settings: str) -> nn.Module:
    shape, classes = NETWORKS[name][:2]
    torch.manual_seed(seed)
    return MODELS.get(name)(**settings).build(shape, classes)


def inputs(name: str, count: int = 3) -> Tensor:
    shape, classes = NETWORKS[name][:2]
    if name == "char-lstm":
        return torch.arange(count * math.prod(shape)).reshape(count, *shape) * 7 % classes
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def parameters_of(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_every_registered_model_is_tested():
    elsewhere = {"huggingface"}  # test_pretrained.py
    assert set(NETWORKS) == set(MODELS) - elsewhere


@every_network
def test_parameter_counts(name):
    assert parameters_of(built(name)) == NETWORKS[name][2]


@pytest.mark.parametrize(
    ("shape", "classes", "last_padding", "parameters"),
    [
        (CIFAR, 100, 1, 705_988),
        ((1, 32, 32), 26, 0, 438_074),  # EMNIST as FedMAX pads it
        (MNIST, 26, 1, 438_074),
    ],
)
def test_variants_of_fedmax_network(shape, classes, last_padding, parameters):
    network = CifarCnn5(last_padding=last_padding).build(shape, classes)
    assert parameters_of(network) == parameters
    assert network(torch.rand(2, *shape)).shape == (2, classes)
    assert not any(m.bias is not None for m in network.modules() if isinstance(m, nn.Conv2d))


@every_network
def test_stages_have_their_shapes_and_compose_to_the_forward(name):
    _, classes, _, features, hidden, _ = NETWORKS[name]
    network, x = built(name).eval(), inputs(name)
    assert [child for child, _ in network.named_children()] == ["features", "hidden", "head"]
    with torch.no_grad():
        first = network.features(x)
        second = network.hidden(first)
        logits = network.head(second)
        assert torch.equal(network(x), logits)
    assert first.shape == (3, *features)
    assert second.shape == (3, hidden)
    assert logits.shape == (3, 1 if name == "3nn-mimic" else classes)


@every_network
def test_hidden_ends_at_the_input_of_the_last_layer(name):
    network = built(name)
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    assert list(network.head) == linear[-1:]


@every_network
def test_weight_layers(name):
    network = built(name)
    layers = weight_layers(network)
    assert len(layers) == NETWORKS[name][5]
    assert misplaced(network, layers) is None
    assert layers[-1].path.startswith("head.")
    others = [path for layer in layers for path in layer.others]
    assert bool(others) == name.startswith("resnet")  # BatchNorm


@every_network
def test_weights_come_from_the_seeded_default_generator(name):
    first, again, other = built(name), built(name), built(name, seed=1)
    for (key, one), two, three in zip(
        first.state_dict().items(),
        again.state_dict().values(),
        other.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(one, two)
        if "weight" in key and one.std() > 0:  # not BatchNorm's ones
            assert not torch.equal(one, three)


@pytest.mark.parametrize(
    "name",
    sorted(
        {*NETWORKS} - {"cifar-cnn-2", "char-lstm", "pfl-cifar-cnn", "resnet18", "resnet50", "vgg9"}
    ),
)
def test_weights_start_as_pytorch_initialises_them(name):
    for module in built(name).modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(module.weight[0].numel())
            assert module.weight.abs().max() <= bound
            assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("name", ["cifar-cnn-2", "mnist-cnn", "pfl-cifar-cnn"])
def test_networks_start_as_their_authors_do(name):
    own = {"initialisation": "xavier_uniform"} if name == "mnist-cnn" else {}
    for module in built(name, **own).modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            out, fan_in = module.weight.flatten(1).shape
            fan_out = out * module.weight[0, 0].numel()
            expected = math.sqrt(2 / (fan_in + fan_out))
            assert module.weight.std().item() == pytest.approx(expected, rel=0.05)
            assert module.bias.any() == (name == "pfl-cifar-cnn")


def test_mnist_cnn_without_padding_is_pfllib_s():
    """5x5 kernels take 4 pixels: 28, 24, 12, 8, 4; 582,026 parameters, of its `FedAvgCNN`."""
    network = MnistCnn(padding=0, dropout=0.0).build((1, 28, 28), 10)
    assert network.features(torch.zeros(2, 1, 28, 28)).shape == (2, 64, 4, 4)
    assert sum(each.numel() for each in network.parameters()) == 582_026
    assert MnistCnn(padding=0).build((3, 32, 32), 10)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert MnistCnn(padding=1).build((1, 10, 10), 3)(torch.zeros(2, 1, 10, 10)).shape == (2, 3)
    with pytest.raises(SettingsError, match="at least 16x16 pixels"):
        MnistCnn(padding=0).build((1, 15, 15), 10)


def test_mnist_cnn_starts_as_in_the_code_of_fedmmd():
    """A normal distribution of deviation 0.1 whose tails beyond two deviations are drawn again."""
    torch.manual_seed(0)
    drawn = MnistCnn(initialisation="truncated_normal").build(MNIST, 10)
    layers = [m for m in drawn.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert len(layers) == 4
    for layer in layers:
        assert 0.19 < layer.weight.abs().max() <= 0.2
        assert layer.weight.std().item() == pytest.approx(truncnorm(-2, 2, 0, 0.1).std(), rel=0.05)
        assert torch.equal(layer.bias, torch.full_like(layer.bias, 0.1))
    with pytest.raises(ValidationError):
        MnistCnn(initialisation="normal")


def test_vgg9_starts_as_he_et_al_do():
    for module in built("vgg9").modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            expected = math.sqrt(2 / module.weight[0].numel())
            assert module.weight.std().item() == pytest.approx(expected, rel=0.05)
            assert not module.bias.any()


def test_char_lstm_starts_with_a_small_head():
    network = built("char-lstm")
    head = network.head[0].weight
    assert 0.009 < head.abs().max() <= 0.01
    assert head.std().item() == pytest.approx(0.01 / math.sqrt(3), rel=0.1)
    assert network.features[0].weight.std().item() == pytest.approx(1, rel=0.1)
    assert not network.head[0].bias.any()
    assert network.hidden[0].weight_hh_l0.abs().max() <= 1 / 16


def test_char_lstm_equals_a_cell_by_cell_computation():
    network, x = built("char-lstm"), inputs("char-lstm", count=2)[:, :5]
    lstm, embedded = network.hidden[0], network.features[0].weight[x]  # [B, L, E]
    hidden, cell = torch.zeros(2, 256), torch.zeros(2, 256)
    for step in range(5):
        gates = embedded[:, step] @ lstm.weight_ih_l0.T + lstm.bias_ih_l0
        gates = gates + hidden @ lstm.weight_hh_l0.T + lstm.bias_hh_l0
        enter, forget, new, out = gates.chunk(4, dim=1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = out.sigmoid() * cell.tanh()
    assert torch.allclose(network.hidden(network.features(x)), hidden, atol=1e-6)


@pytest.mark.parametrize("name", FULLY_CONNECTED)
def test_perceptrons_take_any_shape(name):
    network = MODELS.get(name)().build((3, 33, 30), 2)
    assert network(torch.rand(2, 3, 33, 30)).shape == (2, 1 if name == "3nn-mimic" else 2)


@pytest.mark.parametrize("name", IMAGES_OF)
def test_convolutions_take_other_images_and_classes_down_to_the_smallest(name):
    channels, pixels = 3 if name.startswith("resnet") else 2, IMAGES_OF[name]
    for shape in [(channels, pixels, pixels), (channels, pixels + 1, pixels + 6)]:
        network = MODELS.get(name)().build(shape, 7).eval()
        assert network(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", IMAGES_OF)
def test_convolutions_refuse_what_they_cannot_take(name):
    model, pixels = MODELS.get(name)(), IMAGES_OF[name]
    for shape in [(784,), (3, pixels - 1, 40), (3, 40, pixels - 1), (3, 3, 40, 40)]:
        with pytest.raises(SettingsError) as refused:
            model.build(shape, 10)
        assert str(refused.value) == (
            f"model.name={name}: the dataset's inputs have shape {shape}; allowed are"
            f" images [channels, height, width] of at least {pixels}x{pixels} pixels"
        )


def test_unpadded_last_convolution_needs_larger_images():
    with pytest.raises(SettingsError, match="of at least 16x16 pixels"):
        CifarCnn5(last_padding=0).build((1, 15, 15), 10)
    smallest = CifarCnn5(last_padding=0).build((1, 16, 16), 10)
    assert smallest(torch.rand(1, 1, 16, 16)).shape == (1, 10)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_residual_networks_need_colour(name):
    with pytest.raises(SettingsError, match=rf"model\.name={name}: .*\(1, 32, 32\).* 3 channels"):
        MODELS.get(name)().build((1, 32, 32), 10)


@pytest.mark.parametrize("shape", [(28, 28), (1, 28, 28), (), (0,)])
def test_char_lstm_needs_windows_of_symbols(shape):
    with pytest.raises(SettingsError, match=r"model\.name=char-lstm: .* windows \[length\]"):
        MODELS.get("char-lstm")().build(shape, 80)


def test_one_logit_needs_two_classes():
    with pytest.raises(SettingsError, match=r"model\.name=3nn-mimic: the dataset has 3 classes"):
        MODELS.get("3nn-mimic")().build((1473,), 3)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_perceptrons_need_numbers(shape):
    with pytest.raises(SettingsError, match=r"model\.name=2nn: .* at least one number"):
        TwoNN().build(shape, 10)


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    network, x = MnistCnn(dropout=0.3).build(MNIST, 10), torch.rand(50, *MNIST)
    features = network.features(x)
    kept = network.train().hidden(features)
    plain = network.eval().hidden(features)
    assert torch.equal(network.hidden(features), plain)
    scaled = torch.isclose(kept * 0.7, plain, atol=1e-6)  # kept ones grow by 1 / (1 - 0.3)
    assert (scaled | (kept == 0)).all()
    assert (kept[plain > 0] == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)


def test_cifar_cnn_2_drops_after_each_relu():
    kinds = [type(module).__name__ for module in built("cifar-cnn-2").hidden]
    assert kinds == ["Flatten", *("Linear", "ReLU", "Dropout") * 2]
    assert {m.p for m in built("cifar-cnn-2").hidden if isinstance(m, nn.Dropout)} == {0.2}


def test_vgg9_drops_channels_and_units():
    torch.manual_seed(0)
    network, x = Vgg9(dropout=0.5, channel_dropout=0.5).build(CIFAR, 10), torch.rand(20, *CIFAR)
    dropping = [(p, m.p) for p, m in network.named_modules() if isinstance(m, nn.Dropout)]
    assert dropping == [("hidden.1", 0.5), ("hidden.6", 0.5)]
    kinds = [type(module) for module in network.features]
    upto = network.features[: kinds.index(nn.Dropout2d) + 1]
    plain, kept = upto.eval()(x), upto.train()(x)
    assert plain.shape == (20, 128, 8, 8)
    alive = (plain > 0).any(dim=(2, 3))  # [B, channels]
    dead = (kept == 0).all(dim=(2, 3))[alive]
    assert dead.float().mean().item() == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    "model", [MnistCnn(dropout=0), CifarCnn2(dropout=0), Vgg9(dropout=0, channel_dropout=0)]
)
def test_dropout_can_be_turned_off(model):
    network = model.build(CIFAR, 10).train()
    assert not any("Dropout" in type(module).__name__ for module in network.modules())


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_dropout_is_a_share(share):
    for settings in ({"dropout": share}, {"channel_dropout": share}):
        with pytest.raises(ValidationError):
            Vgg9(**settings)


def test_no_module_works_in_place():
    for name in NETWORKS:
        assert not any(getattr(m, "inplace", False) for m in built(name).modules()), name
