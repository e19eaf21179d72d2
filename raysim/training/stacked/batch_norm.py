"""Padding of stacked clients, and BatchNorm that ignores it.

torch's own BatchNorm updates its statistics in place and knows no padding. This one computes the
same as a function of tensors, with a backward pass in closed form, and leaves the new statistics to
the caller of the step, who moves the statistics of all layers at once.

Legend: K clients, B batch, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.numbers.layers import BATCH_NORMS
from raysim.numbers.tensors import Tensors
from raysim.numbers.tensors.torch_private import foreach_mixed, foreach_squares, has_hooks
from raysim.training.stacked.vmapped import as_one_stack

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
MEAN, LENGTH = "batch mean", "batch length"
"""Names of a batch's statistics, after the layer's: the mean, and the norm of what differs."""


class Padding:
    """Padding and statistics of a batch, which a network's layers share in a forward pass."""

    def __init__(self) -> None:
        self._momenta: dict[str, tuple[float, float]] = {}
        self._begin(None)

    def _begin(self, weights: Tensor | None) -> dict[str, Tensor]:
        self._weights = weights
        self._shares: tuple[Tensor, Tensor] | None = None
        self._unbiased: dict[int, Tensor] = {}
        self._found: dict[str, Tensor] = {}
        return self._found

    @contextmanager
    def of(self, weights: Tensor | None) -> Iterator[dict[str, Tensor]]:
        """Share the weights of a batch for a forward pass, and yield its statistics.

        Args:
            weights: 1 for a sample and 0 for padding [B], or None without padding.
        """
        try:
            yield self._begin(weights)
        finally:
            self._begin(None)

    def shares(self) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Return weights that are 1 on average, and their square roots [B]; None without padding.

        A client without samples has only zeros.
        """
        if self._weights is None:
            return None, None
        if self._shares is None:
            weights = self._weights
            self._ratio = weights.mean(0, keepdim=True).clamp(min=1 / len(weights)).reciprocal()
            shares = weights * self._ratio
            self._shares = shares, shares.sqrt()
        return self._shares

    def record(self, layer: str, momentum: float, values: int, moments: Sequence[Tensor]) -> None:
        """Record the statistics of a layer's batch.

        Args:
            layer: Name of the layer.
            momentum: Share of the batch in the new statistics.
            values: Values per channel, with padding.
            moments: Means [C], and norms [C] of the differences from them, times the roots of the
                shares.
        """
        mean, length = moments
        divisor = max(values - 1, 1)
        if self._weights is not None:
            if values not in self._unbiased:
                self._unbiased[values] = (values - self._ratio).clamp(min=1).rsqrt()
            length, divisor = length * self._unbiased[values], 1
        self._found[f"{layer}.{MEAN}"], self._found[f"{layer}.{LENGTH}"] = mean, length
        self._momenta[layer] = momentum, momentum / divisor

    def moved(self, tensors: Tensors, found: Tensors) -> dict[str, Tensor]:
        """Return new values of buffers [K, ...]: moved statistics, and others as found.

        Args:
            tensors: The tensors before the pass.
            found: Statistics that a pass yields, and new values of other buffers, by name.
        """
        layers = [layer for layer in self._momenta if f"{layer}.{MEAN}" in found]
        if not layers:
            return {**found}
        names = [f"{layer}.running_{kind}" for kind in ("mean", "var") for layer in layers]
        means = [found[f"{layer}.{MEAN}"] for layer in layers]
        squares = foreach_squares([found[f"{layer}.{LENGTH}"] for layer in layers])
        momenta, of_squares = zip(*(self._momenta[layer] for layer in layers), strict=True)
        moved = foreach_mixed(
            [tensors[name] for name in names],
            [*means, *squares],
            [1 - momentum for momentum in momenta] * 2,
            [*momenta, *of_squares],
        )
        new = dict(zip(names, moved, strict=True))
        counters = [f"{layer}.num_batches_tracked" for layer in layers]
        counters = [name for name in counters if name in tensors]
        if counters:
            counts = torch.stack([tensors[name] for name in counters]) + 1
            new |= zip(counters, counts.unbind(), strict=True)
        statistics = {f"{layer}.{kind}" for layer in layers for kind in (MEAN, LENGTH)}
        return new | {name: tensor for name, tensor in found.items() if name not in statistics}


class _Normalise(torch.autograd.Function):
    """BatchNorm of each of K clients: outputs, then what backward and statistics need.

    It takes x [K, B, C, ...], weight and bias [K, C] or None, shares and roots [K, B] or None (see
    `Padding.shares`), and eps. It returns the outputs, the normalised values z [K, B, C, ...], the
    deviations [K, C], the means and the lengths [K, C] (see `Padding.record`). The last two have no
    gradient; z and the deviations do, so that the backward pass, which reads them, is itself
    differentiable.

    With N values per channel, shares p and gradients g of z, the gradient of x is
    (g - p (sum(g) + z sum(g z)) / N) / deviation (Ioffe and Szegedy, 2015, section 3).
    """

    @staticmethod
    def forward(  # noqa: PLR0917
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        shares: Tensor | None,
        roots: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, ...]:
        axes, values = _axes(x), x.numel() // (x.shape[0] * x.shape[2])
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        weighted = x if shares is None else x * _per_sample(shares, x)
        means = weighted.mean(axes, dtype=dtype)
        centred = x - _per_channel(means, x)
        weighted = centred if roots is None else centred * _per_sample(roots, x)
        lengths = torch.linalg.vector_norm(weighted, dim=axes)
        least = torch.tensor(math.sqrt(values * eps), dtype=dtype)
        deviations = torch.hypot(lengths, least) * (1 / math.sqrt(values))
        z = centred / _per_channel(deviations, x)
        if weight is None or bias is None:
            return z.to(x.dtype, copy=True), z, deviations, means, lengths
        y = torch.addcmul(_per_channel(bias, x), z, _per_channel(weight, x))
        return y.to(x.dtype), z, deviations, means, lengths

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, weight, _, shares, *_ = inputs
        _, z, deviations, means, lengths = output
        ctx.save_for_backward(weight, shares, z, deviations)
        ctx.mark_non_differentiable(means, lengths)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        weight, shares, z, deviations = ctx.saved_tensors
        of_y, of_z, of_deviations, *_ = given
        of_y = torch.zeros_like(z) if of_y is None else of_y
        sums, products = _sums(of_y, z)
        scale = 1 / deviations if weight is None else weight / deviations
        of_x = _of_input(of_y, z, sums, products, shares) * _per_channel(scale, z)
        if of_z is not None:  # of a second derivative
            own = _of_input(of_z, z, *_sums(of_z, z), shares)
            of_x = of_x + own / _per_channel(deviations, z)
        if of_deviations is not None:
            values = z.numel() // deviations.numel()
            own = z * _per_channel(of_deviations, z) / values
            of_x = of_x + (own if shares is None else own * _per_sample(shares, z))
        of_weights = (None, None) if weight is None else (products, sums)
        return of_x, *of_weights, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
        return as_one_stack(_Normalise, info.batch_size, in_dims, given)


def _axes(x: Tensor) -> list[int]:
    """Return the axes of inputs [K, B, C, ...] over which a channel has one mean."""
    return [1, *range(3, x.dim())]


def _per_channel(tensor: Tensor, x: Tensor) -> Tensor:
    """Return values [K, C] in a shape that broadcasts to x [K, B, C, ...]."""
    return tensor.view(len(tensor), 1, -1, *(1,) * (x.dim() - 3))


def _per_sample(tensor: Tensor, x: Tensor) -> Tensor:
    """Return values [K, B] in a shape that broadcasts to x [K, B, C, ...]."""
    return tensor.view(*tensor.shape, *(1,) * (x.dim() - 2))


def _sums(gradient: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums [K, C] of a gradient, and of its products with z."""
    return gradient.sum(_axes(z), dtype=z.dtype), (gradient * z).sum(_axes(z))


def _of_input(
    gradient: Tensor, z: Tensor, sums: Tensor, products: Tensor, shares: Tensor | None
) -> Tensor:
    """Return the gradient of x times the deviations, of a gradient of z."""
    values = z.numel() // sums.numel()
    common = torch.addcmul(_per_channel(sums, z), z, _per_channel(products, z))
    if shares is None:
        return torch.sub(gradient, common, alpha=1 / values)
    return torch.addcmul(gradient, common, _per_sample(shares, z), value=-1 / values)


class PaddedBatchNorm(nn.Module):
    """BatchNorm that shares the tensors of a layer and ignores padding."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, layer: BatchNorm, name: str, padding: Padding) -> None:
        super().__init__()
        self.register_parameter("weight", layer.weight)
        self.register_parameter("bias", layer.bias)
        for buffer in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(buffer, getattr(layer, buffer))
        self.eps, self.momentum = layer.eps, layer.momentum
        self._name, self._padding = name, padding
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise inputs x [B, C, ...] by the batch, or in evaluation mode by the statistics."""
        if not self.training and self.running_mean is not None:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        given = (x, self.weight, self.bias, *self._padding.shares())
        of_one = [tensor if tensor is None else tensor.unsqueeze(0) for tensor in given]
        found: tuple[Tensor, ...] = _Normalise.apply(*of_one, self.eps)
        if self.training and self.running_mean is not None and self.momentum is not None:
            moments = [each.squeeze(0) for each in found[-2:]]
            self._padding.record(self._name, self.momentum, x.numel() // x.shape[1], moments)
        return found[0].squeeze(0)


def with_padding(module: nn.Module, padding: Padding) -> nn.Module:
    """Replace a module's BatchNorm layers, in place; return the module.

    A layer stays that does more than torch's own: a subclass, or one with hooks.
    """
    layers = [(n, m) for n, m in module.named_modules() if _is_plain(m)]
    for name, layer in layers:
        path, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(path), attribute, PaddedBatchNorm(layer, name, padding))
    return module


def _is_plain(layer: nn.Module) -> bool:
    return type(layer) in BATCH_NORMS and not has_hooks(layer) and "forward" not in vars(layer)
