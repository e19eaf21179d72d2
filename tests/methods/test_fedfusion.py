"""FedFusion against NumPy: the three operators, what is frozen, what travels, what is smoothed.

The oracle differentiates its objective numerically, in float64.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.federation.task import from_task
from raysim.methods.fedfusion import FedFusion, Fused
from raysim.numbers.seeds import seeded
from raysim.testing.tasks import SmallNet
from raysim.training.network import Network
from tests.methods import common
from tests.methods.reference import Reference, T
from tests.methods.test_oracle import EPOCHS, ROUNDS, SIZES, assert_close
from tests.tasks import make_settings, make_task

NAME = {"method.name": "fedfusion"}
OPERATORS = ("conv", "multi", "single")


class FusionNet(nn.Module):
    """Three stages of one layer each, on vectors."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(12, 4), nn.ReLU())
        self.hidden = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.hidden(self.features(x)))


class MapsNet(nn.Module):
    """Three stages with maps, BatchNorm and dropout in the features."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Unflatten(1, (1, 3, 4)),
            nn.Conv2d(1, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Dropout(0.5),
        )
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(72, 5), nn.ReLU())
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.hidden(self.features(x)))


NAMES = (
    *(f"features.local.0.{kind}" for kind in ("weight", "bias")),
    "features.fusion",
    *("hidden.0.weight", "hidden.0.bias", "head.weight", "head.bias"),
)


BIAS = "features.fusion_bias"


def fused_features(x, local, frozen, fusion, fusion_bias=0.0):
    own, given = (np.maximum(x @ weight.T + bias, 0) for weight, bias in (local, frozen))
    if fusion.ndim == 2:
        return np.concatenate([own, given], axis=1) @ fusion.T + fusion_bias
    return fusion * given + (1 - fusion) * own


def loss(w, frozen, x, y):
    """The mean cross-entropy at temperature T; w as in NAMES, and BIAS if conv has it."""
    fused = fused_features(x, w[:2], frozen, w[2], *w[7:])
    inner = np.maximum(fused @ w[3].T + w[4], 0)
    logits = (inner @ w[5].T + w[6]) / T
    top = logits.max(1, keepdims=True)
    logs = logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))
    return -logs[np.arange(len(y)), y].mean()


def slopes(w, frozen, x, y, step=1e-6):
    result = []
    for index, tensor in enumerate(w):
        slope = np.zeros_like(tensor)
        for place in np.ndindex(*tensor.shape):
            values = []
            for sign in (1, -1):
                moved = [np.array(p) for p in w]
                moved[index][place] += sign * step
                values.append(loss(moved, frozen, x, y))
            slope[place] = (values[0] - values[1]) / (2 * step)
        result.append(slope)
    return result


def fedfusion(reference, ema):
    """Rounds in NumPy; returns the averaged weights, and the E_g that they were trained with."""
    w = reference.start
    for number, cohort in enumerate(reference.cohorts):
        start = w

        def slope(local, x, y, frozen=start[:2]):
            return slopes(local, frozen, x, y)

        w = reference.mean(cohort, [reference.train(start, number, k, slope) for k in cohort])
        if w[2].ndim < 2:
            w[2] = (1 - ema) * w[2] + ema * start[2]
    return w, start[:2]


def run(tmp_path, operator, model=FusionNet, sizes=SIZES, **overrides):
    task = make_task(sizes, model)
    base = {
        "rounds": ROUNDS,
        "fraction": 1.0,
        "local.epochs": EPOCHS,
        "local.batch_size": "full",
        "local.lr": 0.5,
        "method.operator": operator,
    }
    settings = make_settings(tmp_path / "run", **NAME, **base | overrides)
    return raysim.run(settings, task), task


def first_of(task, operator):
    network = FedFusion(operator=operator).network(from_task(task).network(0))
    return {n: p.detach().numpy().astype(np.float64) for n, p in network.named_parameters()}


def first_convolution():
    """The weights that PyTorch draws for the authors' `Conv2d(2C, C, 1)`, C = 4."""
    with seeded(0, "network"):
        convolution = nn.Conv2d(8, 4, kernel_size=1)
    weight, bias = (p.detach().numpy().astype(np.float64) for p in convolution.parameters())
    return {"features.fusion": weight[:, :, 0, 0], BIAS: bias}


@pytest.mark.parametrize("start", ["identity", "torch"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_rounds_equal_numpy(tmp_path, operator, start):
    """With "torch" as in the authors' code, whose clients keep their momentum, too."""
    convolves = (operator, start) == ("conv", "torch")
    names = (*NAMES, *([BIAS] if convolves else []))

    def first(task):
        tensors = first_of(task, operator) | (first_convolution() if convolves else {})
        return [tensors[name] for name in names]

    own = {"method.operator": operator, "method.conv_start": start, "method.ema": 0.3}
    overrides = {**NAME, **own, "rounds": 3, "local.keep": start == "torch"}
    reference = Reference(tmp_path, overrides, model=FusionNet, first=first)
    expected, frozen = fedfusion(reference, 0.3)
    assert_close(reference.result.params, expected, names)
    assert (BIAS in reference.result.params) == convolves
    names = [f"features.frozen.0.{kind}" for kind in ("weight", "bias")]
    assert_close(reference.result.params, frozen, names)
    assert np.abs(expected[2] - reference.start[2]).max() > 1e-3


@pytest.mark.parametrize("model", [FusionNet, MapsNet])
@pytest.mark.parametrize("operator", OPERATORS)
def test_first_forward_is_that_without_fusion(operator, model):
    """Bit for bit, in training and in evaluation mode, logits and features."""
    plain, x = model(), torch.eye(7, 12)
    for training in (True, False):
        networks = FedFusion(operator=operator).network(plain), copy.deepcopy(plain)
        found, expected = (run_seeded(network.train(training), x) for network in networks)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


def run_seeded(network, x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Network(network)(x)


def test_conv_starts_as_identity_beside_zero_and_the_others_at_zero():
    fusions = {o: FedFusion(operator=o).network(MapsNet()).features.fusion for o in OPERATORS}
    assert torch.equal(fusions["conv"], torch.cat([torch.eye(6), torch.zeros(6, 6)], dim=1))
    assert torch.equal(fusions["multi"], torch.zeros(6))
    assert torch.equal(fusions["single"], torch.zeros(()))


@pytest.mark.parametrize("operator", OPERATORS)
def test_fusion_of_maps_by_hand(operator):
    """Channel by channel and pixel by pixel, with weights that are not the first ones."""
    fused = Fused(nn.Conv2d(2, 3, 1), operator).eval()
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        fused.fusion.copy_(torch.randn(fused.fusion.shape, generator=draws))
        fused.local.weight.add_(1)
        x = torch.randn(4, 2, 5, 6, generator=draws)
        own, given, found = fused.local(x), fused.frozen(x), fused(x)
    assert found.shape == own.shape
    weights = fused.fusion.detach().numpy()
    for channel in range(3):
        expected = 0.0
        for other in range(3):
            if operator == "conv":
                expected = expected + float(weights[channel, other]) * own[:, other]
                expected = expected + float(weights[channel, 3 + other]) * given[:, other]
        if operator != "conv":
            lam = float(weights[channel] if operator == "multi" else weights)
            expected = lam * given[:, channel] + (1 - lam) * own[:, channel]
        assert torch.allclose(found[:, channel], expected, atol=1e-6)


def test_a_convolution_of_maps_is_that_of_the_authors_code():
    """Where they concatenate E_l and E_g and convolve, in float64, from one draw of weights."""
    with seeded(7, "any"):
        convolution = nn.Conv2d(6, 3, kernel_size=1).double()
    model = FusionNet().double()
    model.features = nn.Conv2d(2, 3, 1).double()
    with seeded(7, "any"):
        fused = FedFusion(operator="conv", conv_start="torch").network(model).features
    with torch.no_grad():
        fused.local.weight.add_(1)
        x = torch.randn(4, 2, 5, 6, dtype=torch.float64)
        expected = convolution(torch.cat([fused.local(x), fused.frozen(x)], dim=1))
        assert torch.allclose(fused(x), expected, atol=1e-12)


@pytest.mark.parametrize("operator", OPERATORS)
def test_frozen_features_stay_as_they_are(operator):
    """No gradient, no dropout and no statistics of theirs, in training mode too."""
    network = FedFusion(operator=operator).network(MapsNet())
    network.train()
    frozen = network.features.frozen
    assert not any(module.training for module in frozen.modules())
    assert network.features.local.training and network.hidden.training
    assert not any(p.requires_grad for p in frozen.parameters())
    before = {n: t.clone() for n, t in frozen.state_dict().items()}
    network(torch.eye(9, 12)).sum().backward()
    assert all(torch.equal(before[n], t) for n, t in frozen.state_dict().items())
    assert all(p.grad is None for p in frozen.parameters())
    assert network.features.local[2].num_batches_tracked == 1
    assert network.features.fusion.grad is not None


def test_a_model_is_left_as_it_was():
    model = MapsNet()
    FedFusion().network(model)
    assert isinstance(model.features, nn.Sequential)


@pytest.mark.parametrize("operator", OPERATORS)
def test_deployed_with_the_features_that_the_clients_were_given(tmp_path, operator):
    """BatchNorm's statistics too; the next round starts from the averaged ones."""
    results = [
        run(tmp_path / str(n), operator, MapsNet, (9, 20), rounds=n)[0].params for n in (1, 2)
    ]
    frozen = [name for name in results[0] if name.startswith("features.frozen.")]
    assert len(frozen) == 2 + 5
    first = FedFusion().network(from_task(make_task((9, 20), MapsNet)).network(0)).state_dict()
    for name in frozen:
        local = name.replace("frozen", "local")
        assert torch.equal(results[0][name], first[local])
        assert torch.equal(results[1][name], results[0][local])
    assert not torch.equal(results[0]["features.local.1.weight"], first["features.local.1.weight"])


@pytest.mark.parametrize(
    ("operator", "start", "weights"),
    [
        ("conv", "identity", 4 * 8),
        ("conv", "torch", 4 * 9),
        ("multi", "torch", 4),
        ("single", "torch", 1),
    ],
)
def test_frozen_features_do_not_travel(tmp_path, operator, start, weights):
    result, _ = run(tmp_path, operator, **{"method.conv_start": start})
    model = sum(p.numel() for p in FusionNet().parameters())
    for way in ("bytes_up", "bytes_down"):
        assert result.metrics[way].to_pylist() == [len(SIZES) * 4 * (model + weights)] * ROUNDS


@pytest.mark.parametrize("operator", ["multi", "single"])
def test_the_server_smooths_lam(tmp_path, operator):
    """After one round from 0: a share of 1 - ema of the clients' mean, and the rest as without."""
    plain, _ = run(tmp_path / "plain", operator, rounds=1, **{"method.ema": 0})
    smooth, _ = run(tmp_path / "smooth", operator, rounds=1)  # ema = 0.9
    for name in plain.params:
        share = 0.1 if name == "features.fusion" else 1.0
        assert torch.allclose(smooth.params[name], share * plain.params[name], atol=1e-8), name
    assert plain.params["features.fusion"].abs().max() > 1e-4


@pytest.mark.parametrize("operator", OPERATORS)
def test_metrics_describe_the_fusion(tmp_path, operator):
    result, _ = run(tmp_path, operator)
    fusion, last = result.params["features.fusion"].numpy(), result.metrics.to_pylist()[-1]
    if operator == "conv":
        expected = {
            "fusion_local_norm": np.sqrt((fusion[:, :4] ** 2).sum()),
            "fusion_frozen_norm": np.sqrt((fusion[:, 4:] ** 2).sum()),
        }
    else:
        names = ("fusion_mean", "fusion_min", "fusion_max")
        expected = dict(zip(names, (fusion.mean(), fusion.min(), fusion.max()), strict=True))
    assert {n: v for n, v in last.items() if n.startswith("fusion")} == pytest.approx(expected)


@pytest.mark.parametrize("operator", OPERATORS)
def test_tiny_clients(tmp_path, operator):
    overrides = {**NAME, "method.operator": operator}
    common.assert_trains_tiny_clients(tmp_path, overrides, FusionNet)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"method.operator": "sum"},
            "method.operator=\"sum\": must be 'conv', 'multi' or 'single'",
        ),
        (
            {"method.conv_start": "random"},
            "method.conv_start=\"random\": must be 'identity' or 'torch'",
        ),
        ({"method.ema": -0.1}, "method.ema=-0.1: must be greater than or equal to 0"),
        ({"method.ema": 1}, "method.ema=1: must be less than 1"),
    ],
)
def test_bad_settings(tmp_path, overrides, message):
    common.assert_refused(tmp_path, NAME | overrides, message, FusionNet)


class NormOnly(FusionNet):
    """Its features have weights, but in no layer whose channels are known."""

    def __init__(self):
        super().__init__()
        self.features = nn.LayerNorm(12)
        self.hidden = nn.Sequential(nn.Linear(12, 5), nn.ReLU())


class FlatMaps(FusionNet):
    """Its features end in other channels than those of their last layer."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 2, 3, padding=1), nn.Flatten()
        )
        self.hidden = nn.Linear(24, 5)


class Headless(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(12, 4)

    def forward(self, x):
        return self.features(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            common.Stageless,
            "fedfusion: needs .* features, hidden, head; .*lacks features, hidden, head",
        ),
        (Headless, "fedfusion: needs .* features, hidden, head; .*lacks hidden, head"),
        (SmallNet, 'method.operator="multi": needs .* a convolution, a linear'),
        (NormOnly, 'method.operator="multi": needs .* a convolution, a linear'),
    ],
)
def test_models_that_do_not_suit(tmp_path, model, message):
    common.assert_refused(tmp_path, NAME, message, model)


@pytest.mark.parametrize("model", [NormOnly, FlatMaps, SmallNet])
def test_single_allows_any_features(tmp_path, model):
    result, _ = run(tmp_path, "single", model)
    moved = float(result.params["features.fusion"]) != 0
    assert moved == (model is not SmallNet)  # which has no parameters there: E_l is E_g


class Words(FusionNet):
    """Features of a sequence, whose channels come last."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Unflatten(1, (3, 4)), nn.Linear(4, 6))
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(18, 5), nn.ReLU())


class Recurrent(nn.Module):
    """All states of an LSTM in both directions."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.lstm(x.unflatten(1, (3, 4)))[0]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("features", [Words().features, Recurrent(), nn.Embedding(9, 6)])
def test_channels_of_sequences_come_last(features, operator):
    fused = Fused(features, operator)
    assert fused.fusion.shape == {"conv": (6, 12), "multi": (6,), "single": ()}[operator]
    embeds = isinstance(features, nn.Embedding)
    x = torch.zeros(5, 3, dtype=torch.long) if embeds else torch.eye(5, 12)
    with torch.no_grad():
        assert fused(x).shape == (5, 3, 6)
        assert torch.equal(fused(x), features(x))
        if operator == "multi":
            fused.fusion[2] = 1.0
            for parameter in fused.frozen.parameters():
                parameter.add_(1.0)
            changed = (fused(x) != features(x)).flatten(0, 1).any(0)
            assert changed.tolist() == [False, False, True, False, False, False]


def test_features_with_other_channels_than_their_last_layer(tmp_path):
    message = r'^method\.operator="multi": .* gives 24 channels but its last layer has 2;.*"single"'
    with pytest.raises(raysim.SettingsError, match=message):
        run(tmp_path, "multi", FlatMaps)
    assert not list(tmp_path.iterdir())  # nothing had begun
