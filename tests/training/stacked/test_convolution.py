"""A convolution of a stack is torch's of each client's samples, and so are its derivatives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap

from raysim.training.stacked.convolution import (
    ColumnConv2d,
    _Convolve,
    _window_of,
    column_bytes,
    pays,
    with_columns,
)
from tests.cuda.device import CudaDevice
from tests.training.stacked.test_trainer import run

LAYERS = {
    "3x3": {"kernel_size": 3, "padding": 1},
    "5x5 of stride 2": {"kernel_size": 5, "padding": 2, "stride": 2},
    "oblong": {"kernel_size": (3, 2), "padding": (2, 0), "stride": (2, 1), "dilation": (1, 3)},
    "1x1": {"kernel_size": 1},
    "1x1 of stride 2": {"kernel_size": 1, "stride": 2},
    "1x1, padded": {"kernel_size": 1, "padding": 1},
    "no bias": {"kernel_size": 2, "bias": False},
}
LAYOUTS = {"images": (0, 1, 2), "clients' channels": (0, 2, 1), "batches first": (1, 0, 2)}
"""Orders of clients, batch and channels in memory."""


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def images(layout, dtype):
    """Return images [K=2, B=3, C=2, 6, 5] in an order in memory."""
    order = LAYOUTS[layout]
    x = draw(*((2, 3, 2)[axis] for axis in order), 6, 5, dtype=dtype)
    return x.permute(*(order.index(axis) for axis in range(3)), 3, 4)


def stack_of(layer, dtype=torch.float64):
    """Return a function of the clients' tensors and inputs, and tensors of two clients."""
    replaced = with_columns(nn.Sequential(layer))
    assert isinstance(replaced[0], ColumnConv2d)
    tensors = {
        name: draw(2, *tensor.shape, seed=5 + len(name), dtype=dtype).requires_grad_()
        for name, tensor in replaced.named_parameters()
    }
    return lambda tensors, x: functional_call(replaced, tensors, (x,)), tensors


def reference(layer):
    def run(tensors, x):
        own = layer.stride, layer.padding, layer.dilation
        return F.conv2d(x, tensors["0.weight"], tensors.get("0.bias"), *own)

    return run


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("own", LAYERS.values(), ids=LAYERS)
def test_a_stack_is_torchs_layer_of_each_client(own, layout):
    layer, x = nn.Conv2d(2, 4, **own), images(layout, torch.float32).requires_grad_()
    layer_of, tensors = stack_of(layer, torch.float32)
    maps = vmap(layer_of)(tensors, x)
    gradients = torch.autograd.grad(maps.sin().sum(), [x, *tensors.values()])
    for k in range(2):
        one = {name: tensor[k].detach().requires_grad_() for name, tensor in tensors.items()}
        own_x = x[k].detach().requires_grad_()
        expected = reference(layer)(one, own_x)
        derived = torch.autograd.grad(expected.sin().sum(), [own_x, *one.values()])
        for found, wanted in zip([maps, *gradients], [expected, *derived], strict=True):
            assert (found[k] - wanted).norm() < 1e-5 * wanted.norm()


@pytest.mark.parametrize("own", LAYERS.values(), ids=LAYERS)
def test_derivatives_are_those_of_finite_differences(own):
    layer = nn.Conv2d(2, 3, **own)
    given = draw(2, 1, 2, 4, 4).requires_grad_(), draw(2, *layer.weight.shape).requires_grad_()

    def run(x, weight):
        return _Convolve.apply(x, weight, _window_of(layer))[0]

    assert gradcheck(run, given) and gradgradcheck(run, given)


def test_transforms_within_vmap_see_a_convolution():
    """As of `View.gradient(along=...)`: the gradient of a gradient, of each client."""
    layer = nn.Conv2d(2, 4, 3, padding=1)
    layer_of, tensors = stack_of(layer)
    x, along = images("images", torch.float64), {n: t.detach().cos() for n, t in tensors.items()}

    def product(run, tensors, x, along):
        def value(tensors):
            return run(tensors, x).sin().sum()

        def inner(tensors):
            return sum((part * along[n]).sum() for n, part in grad(value)(tensors).items())

        return grad(inner)(tensors)

    given = {name: tensor.detach() for name, tensor in tensors.items()}, x, along
    found = vmap(lambda *each: product(layer_of, *each))(*given)
    expected = vmap(lambda *each: product(reference(layer), *each))(*given)
    torch.testing.assert_close(found, expected)
    # of one x for all
    found, expected = (
        vmap(lambda *each, f=f: product(f, *each), in_dims=(0, None, 0))(given[0], x[0], along)
        for f in (layer_of, reference(layer))
    )
    torch.testing.assert_close(found, expected)


def test_bf16_is_that_of_torchs_layer():
    layer = nn.Conv2d(2, 4, 3, padding=1)
    layer_of, tensors = stack_of(layer, torch.float32)
    x = images("images", torch.float32)
    results = []
    for function in (layer_of, reference(layer)):
        with torch.autocast("cpu", torch.bfloat16):
            maps = vmap(function)(tensors, x)
        gradients = torch.autograd.grad(maps.float().sin().sum(), [*tensors.values()])
        results.append([maps, *gradients])
    assert results[0][0].dtype == torch.bfloat16
    for found, expected in zip(*results, strict=True):
        assert (found - expected).norm() < 0.02 * expected.norm()


def hooked():
    layer = nn.Conv2d(2, 4, 3)
    layer.register_forward_hook(lambda *given: None)
    return layer


class OwnConv2d(nn.Conv2d):
    """May do anything else."""


OTHERS = {
    "subclass": OwnConv2d(2, 4, 3),
    "hooked": hooked(),
    "in groups": nn.Conv2d(2, 4, 3, groups=2),
    "mirrored": nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
    "same": nn.Conv2d(2, 4, 3, padding="same"),
    "of sequences": nn.Conv1d(2, 4, 3),
}


@pytest.mark.parametrize("layer", OTHERS.values(), ids=OTHERS)
def test_other_layers_stay(layer):
    assert with_columns(nn.Sequential(layer))[0] is layer
    assert column_bytes(layer, torch.zeros(1, 4, 4, 4)) == 0


@pytest.mark.parametrize(
    ("channels", "positions", "expected"),
    [
        *((2, 64, False), (3, 64, True), (20, 112, True), (20, 113, False), (21, 196, True)),
        *((64, 1024, True), (64, 1025, False)),
    ],
)
def test_columns_pay_by_channels_and_positions(channels, positions, expected):
    assert pays(channels, positions) == expected


@pytest.mark.parametrize(("channels", "side"), [(2, 6), (4, 40)])
def test_a_layer_that_columns_do_not_pay_for_is_grouped(monkeypatch, channels, side):
    monkeypatch.setattr(_Convolve, "apply", None)
    layer = nn.Conv2d(2, channels, 3, padding=1).double()
    replaced, x = with_columns(nn.Sequential(layer)), draw(1, 2, side, side)
    assert torch.equal(replaced(x), layer(x))


def test_bf16_is_found_on_a_device():
    layer = nn.Conv2d(2, 4, 3)
    with CudaDevice(lines=False):
        x, replaced = draw(3, 2, 6, 6).float().cuda(), with_columns(nn.Sequential(layer.cuda()))
        with torch.autocast("cuda", torch.bfloat16):
            assert replaced(x).dtype == torch.bfloat16
        assert replaced(x).dtype == torch.float32


def test_a_single_image_is_no_batch():
    layer, x = nn.Conv2d(2, 4, 3), draw(2, 6, 6).float()
    assert torch.equal(with_columns(nn.Sequential(layer))(x), layer(x))


def test_a_stack_on_a_cpu_stays_grouped(tmp_path, monkeypatch):
    monkeypatch.setattr(_Convolve, "apply", None)
    _, notes = run(tmp_path, "fedavg", "cnn", 3)
    assert not notes


def test_bytes_are_those_of_the_columns():
    layer, x = nn.Conv2d(2, 4, (3, 2), stride=2), draw(5, 2, 9, 8).float()
    columns = _Convolve.apply(x[None], layer.weight[None], _window_of(layer))[1]
    maps = layer(x)
    assert maps.shape == (5, 4, 4, 4)
    assert column_bytes(layer, maps) == 4 * columns.numel() == 4 * (5 * 4 * 4) * (2 * 3 * 2)
    assert column_bytes(layer, maps[:, :2]) == 0
