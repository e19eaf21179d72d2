"""BatchNorm of a stack is torch's of each client's samples, and so are its derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap

from raysim.training.stacked.batch_norm import Padding, _Normalise, with_padding

KINDS = [(nn.BatchNorm1d, ()), (nn.BatchNorm1d, (5,)), (nn.BatchNorm2d, (2, 3))]
KINDS += [(nn.BatchNorm3d, (2, 1, 2))]
SIZES = (4, 2, 3)
"""Samples of three clients; the others of four are padding."""


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_of(kind, **own):
    """Return a layer of three channels with weights that are neither 1 nor 0."""
    layer = kind(3, **own).double()
    for number, parameter in enumerate(layer.parameters()):
        parameter.data.copy_(draw(3, seed=number + 5))
    return layer


def weights_of(sizes):
    return (torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]).double()


def stacked_run(layer, x, weights):
    """Return outputs, new buffers and gradients of the squared outputs, of a stack."""
    padding = Padding()
    replaced = with_padding(nn.Sequential(layer), padding)
    names = dict(replaced.named_parameters())
    tensors = {n: t.detach().expand(len(x), *t.shape) for n, t in replaced.state_dict().items()}
    tensors |= {name: tensors[name].clone().requires_grad_() for name in names}

    def run(tensors, x, weights):
        with padding.of(weights) as found:
            return functional_call(replaced, tensors, (x,)), {**found}

    y, found = vmap(run, in_dims=(0, 0, None if weights is None else 0))(tensors, x, weights)
    real = torch.ones(x.shape[:2]) if weights is None else weights
    loss = (y.sin() * real.view(*real.shape, *(1,) * (x.dim() - 2))).sum()
    gradients = torch.autograd.grad(loss, [x, *(tensors[name] for name in names)])
    return y, padding.moved(tensors, found), gradients


@pytest.mark.parametrize("weights", [None, weights_of(SIZES)], ids=["full", "padded"])
@pytest.mark.parametrize("own", [{}, {"affine": False}, {"track_running_stats": False}])
@pytest.mark.parametrize(("kind", "rest"), KINDS)
def test_a_stack_is_torchs_layer_of_each_client(kind, rest, own, weights):
    x = draw(3, 4, 3, *rest).mul(2).add(1).requires_grad_()
    y, buffers, gradients = stacked_run(layer_of(kind, **own), x, weights)
    for k, size in enumerate(SIZES if weights is not None else (4, 4, 4)):
        layer, own_x = layer_of(kind, **own), x[k, :size].detach().requires_grad_()
        expected = layer(own_x)
        torch.testing.assert_close(y[k, :size], expected)
        derived = torch.autograd.grad(expected.sin().sum(), [own_x, *layer.parameters()])
        torch.testing.assert_close(gradients[0][k, :size], derived[0])
        assert not gradients[0][k, size:].any()
        torch.testing.assert_close([each[k] for each in gradients[1:]], [*derived[1:]])
        found = {name.removeprefix("0."): tensor[k] for name, tensor in buffers.items()}
        torch.testing.assert_close(found, dict(layer.named_buffers()))


def test_values_of_other_buffers_are_as_found():
    padding = Padding()
    layer = with_padding(nn.Sequential(nn.BatchNorm1d(3)), padding)
    with padding.of(None) as statistics:
        layer(torch.ones(4, 3))
        found = {name: each[None] for name, each in statistics.items()} | {"own": torch.ones(1)}
    tensors = {name: tensor[None] for name, tensor in layer.state_dict().items()}
    moved = padding.moved(tensors, found)
    assert moved.keys() == {name for name, _ in layer.named_buffers()} | {"own"}
    assert moved["own"] is found["own"]
    assert padding.moved({}, {"own": found["own"]}) == {"own": found["own"]}


def test_clients_with_one_sample_or_none_stay_finite():
    x = draw(3, 4, 3).requires_grad_()
    layer = layer_of(nn.BatchNorm1d)
    y, buffers, gradients = stacked_run(layer, x, weights_of((4, 1, 0)))
    assert y.isfinite().all() and all(each.isfinite().all() for each in gradients)
    torch.testing.assert_close(y[1, 0], layer.bias.detach())
    assert not any(each[2].any() for each in gradients)
    variances, means = buffers["0.running_var"], buffers["0.running_mean"]
    torch.testing.assert_close(variances[1:], torch.full((2, 3), 0.9, dtype=torch.float64))
    torch.testing.assert_close(means[1], 0.1 * x[1, 0].detach())
    assert not means[2].any()


@pytest.mark.parametrize("weights", [None, weights_of(SIZES)], ids=["full", "padded"])
@pytest.mark.parametrize("affine", [True, False])
def test_derivatives_are_those_of_finite_differences(affine, weights):
    x = draw(3, 4, 3, 2).requires_grad_()
    scale = [draw(3, 3, seed=n).requires_grad_() if affine else None for n in (1, 2)]
    shares = None if weights is None else weights / weights.mean(1, keepdim=True)
    roots = None if shares is None else shares.sqrt()

    def run(x, *scale):
        return _Normalise.apply(x, *(scale or (None, None)), shares, roots, 1e-5)[0]

    inputs = (x, *(each for each in scale if each is not None))
    assert gradcheck(run, inputs) and gradgradcheck(run, inputs)


def composed(x, weight, bias):
    centred = x - x.mean(0)
    return centred * (centred.square().mean(0) + 1e-5).rsqrt() * weight + bias


def test_transforms_within_vmap_see_a_formula():
    """As of `View.gradient(along=...)`: the gradient of a gradient, of each client."""

    def product(layer, x, weight, bias, along):
        def value(weight, x):
            return layer(x, weight, bias).sin().sum()

        def inner(weight, x):
            of_weight, of_x = grad(value, argnums=(0, 1))(weight, x)
            return of_weight @ along + (of_x * along).sum()

        return grad(inner, argnums=(0, 1))(weight, x)

    padded = with_padding(nn.Sequential(layer_of(nn.BatchNorm1d)), Padding())

    def layer(x, weight, bias):
        return functional_call(padded, {"0.weight": weight, "0.bias": bias}, (x,))

    given = draw(2, 4, 3), *(draw(2, 3, seed=n) for n in (1, 2, 3))
    found = vmap(lambda *each: product(layer, *each))(*given)
    expected = vmap(lambda *each: product(composed, *each))(*given)
    torch.testing.assert_close(found, expected)
    nested = vmap(vmap(lambda *each: product(layer, *each)))(*(each[None] for each in given))
    torch.testing.assert_close([each[0] for each in nested], [*expected])
    shared = vmap(lambda x: product(layer, x, *(each[0] for each in given[1:])))(given[0])
    torch.testing.assert_close([each[0] for each in shared], [each[0] for each in expected])


def test_half_precision_is_that_of_torchs_layer():
    x = draw(1, 8, 3, 2, 2).bfloat16()
    layer = nn.BatchNorm2d(3)
    replaced = with_padding(nn.Sequential(nn.BatchNorm2d(3)), Padding())
    results = []
    for module in (layer, replaced):
        given = x[0].clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = module(given)
        y.float().sin().sum().backward()
        results.append([y, given.grad, *(parameter.grad for parameter in module.parameters())])
    torch.testing.assert_close(results[1], results[0], atol=1e-2, rtol=1e-2)
    assert [each.dtype for each in results[1]] == [torch.bfloat16] * 2 + [torch.float32] * 2
