"""Convolutions of a stack on a GPU: patches copied to columns, and a product for each client.

vmap makes the convolutions of K clients one convolution in K groups, for which cuDNN is slow. Here
the patches of a client's batch are copied to columns once, which a batched product multiplies with
its weights. The weights' gradient is a product with the columns, the input's one that `fold` adds
up. All are deterministic, and the same kernels for any K.

Whether a layer takes columns follows from its shapes alone, as timing would change bits. Estimated,
not measured, for an H200 (4.3 TB/s; products at 33 TFLOP/s, half its peak): for each position and
each of its C kh kw values, three products with O output channels are 6 O operations, and writing
and reading the columns (once to copy them, twice in products) and those of the gradient (written,
copied and read by `fold`) moves 28 bytes. So columns take 0.18 O + 6.5 ps. Grouped convolutions
reached 2 TFLOP/s in ResNet-18 (most maps of 8x8 and less), which is 3 O ps, and 12 TFLOP/s in a CNN
(maps of 28x28 and 14x14), which is 0.5 O ps: columns pay from 3 and from 21 output channels on. The
border between the two, 112 positions, is the geometric mean of 64 and 196. Maps of more than 32x32
were not measured; their columns would take much memory.

Legend: K clients, B batch, C input channels, O output channels, L output positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.numbers.tensors.torch_private import has_hooks
from raysim.training.stacked.vmapped import as_one_stack

SMALL_MAP, LARGEST_MAP = 112, 1024
"""Output positions of maps on which grouped convolutions are slow, and most that take columns."""
LEAST_ON_SMALL, LEAST_ON_LARGE = 3, 21
"""Output channels from which on columns pay."""


def pays(channels: int, positions: int) -> bool:
    """Return whether columns pay for O output channels and maps of L positions."""
    least = LEAST_ON_SMALL if positions <= SMALL_MAP else LEAST_ON_LARGE
    return positions <= LARGEST_MAP and channels >= least


def column_bytes(layer: nn.Module, maps: Tensor) -> int:
    """Return the bytes of a layer's columns, which a stack on a GPU keeps for the backward pass.

    The columns' gradient takes as much twice, for the time of one layer's backward pass.

    Args:
        layer: A layer of a network.
        maps: Its outputs [B, O, H, W].
    """
    if not isinstance(layer, nn.Conv2d) or not _window_of(layer) or maps.dim() != 4:
        return 0
    batch, channels, *size = maps.shape
    of_position = layer.weight[0].numel() * maps.element_size()
    return batch * math.prod(size) * of_position if pays(channels, math.prod(size)) else 0


@dataclass(frozen=True)
class _Window:
    """Kernel, stride, padding and dilation of a convolution, each (height, width)."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def map(self, shape: torch.Size) -> tuple[int, ...]:
        """Return the height and width of the maps of inputs [..., H, W]."""
        own = (self.kernel, self.stride, self.padding, self.dilation)
        return tuple(
            (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
            for size, kernel, step, pad, gap in zip(shape[-2:], *own, strict=True)
        )

    def columns(self, x: Tensor) -> Tensor:
        """Return the patches of inputs x [K, B, C, H, W] as columns [K, C kh kw, B L]."""
        clients, batch, channels = x.shape[:3]
        size = self.map(x.shape)
        if any(self.padding):
            top, left = self.padding
            x = F.pad(x, (left, left, top, top))
        of_client, of_sample, of_channel, *of_pixel = x.stride()
        within = [gap * stride for gap, stride in zip(self.dilation, of_pixel, strict=True)]
        between = [step * stride for step, stride in zip(self.stride, of_pixel, strict=True)]
        patches = x.as_strided(
            (clients, channels, *self.kernel, batch, *size),
            (of_client, of_channel, *within, of_sample, *between),
        )
        return patches.reshape(clients, -1, batch * size[0] * size[1])

    def added(self, columns: Tensor, shape: torch.Size) -> Tensor:
        """Return the sums of columns [K, C kh kw, B L] at the pixels of x, whose shape is given."""
        clients, batch, channels, *image = shape
        if self.is_identity:
            return columns.view(clients, channels, batch, *image).transpose(1, 2)
        columns = columns.view(clients, columns.shape[1], batch, -1).transpose(1, 2)
        return F.fold(
            columns.flatten(0, 1),
            tuple(image),
            self.kernel,
            dilation=self.dilation,
            padding=self.padding,
            stride=self.stride,
        ).view(shape)

    @property
    def is_identity(self) -> bool:
        """Say whether columns are the inputs themselves."""
        return self.kernel == self.stride == (1, 1) and self.padding == (0, 0)


def _matrix(maps: Tensor) -> Tensor:
    """Return maps [K, B, O, H, W] as matrices [K, O, B L]; a view of what a product gave."""
    return maps.transpose(1, 2).flatten(2)


class _Convolve(torch.autograd.Function):
    """Convolution of each of K clients, without bias.

    It takes x [K, B, C, H, W], the weights [K, O, C, kh, kw] and the window, and returns the maps
    [K, B, O, H, W] and the columns. These are not differentiated: the backward pass, a function of
    its own, takes x as well.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, window: _Window) -> tuple[Tensor, Tensor]:
        columns = window.columns(x)
        product = torch.bmm(weight.flatten(2), columns)
        clients, batch = x.shape[:2]
        maps = product.view(clients, -1, batch, *window.map(x.shape)).transpose(1, 2)
        return maps, columns

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, ctx.window = inputs
        _, columns = output
        ctx.mark_non_differentiable(columns)
        ctx.save_for_backward(x, weight, columns)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad[0]
        return *_Gradients.apply(gradient, *ctx.saved_tensors, ctx.window, needs), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
        return as_one_stack(_Convolve, info.batch_size, in_dims, given)


class _Gradients(torch.autograd.Function):
    """Gradients of x and of the weights of `_Convolve`; None for x if it needs none.

    The first is linear in the weights and in the maps' gradient, the second in x and in that
    gradient: so their derivatives are convolutions and gradients of them again.
    """

    @staticmethod
    def forward(  # noqa: PLR0917
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        columns: Tensor | None,
        window: _Window,
        needs_x: bool,
    ) -> tuple[Tensor | None, Tensor]:
        columns = window.columns(x) if columns is None else columns
        of_maps = _matrix(gradient)
        of_weight = torch.bmm(of_maps, columns.mT).view(weight.shape)
        if not needs_x:
            return None, of_weight
        return window.added(torch.bmm(weight.flatten(2).mT, of_maps), x.shape), of_weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *tensors, _, ctx.window, _ = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, of_x: Tensor | None, of_weight: Tensor) -> tuple[Any, ...]:
        gradient, x, weight = ctx.saved_tensors
        of_x = torch.zeros_like(x) if of_x is None else of_x
        again = _Gradients.apply(gradient, of_x, of_weight, None, ctx.window, True)
        maps = [
            _Convolve.apply(*given, ctx.window)[0] for given in ((of_x, weight), (x, of_weight))
        ]
        return sum(maps), *again, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
        return as_one_stack(_Gradients, info.batch_size, in_dims, given)


class ColumnConv2d(nn.Module):
    """Conv2d that shares the tensors of a layer and takes columns where they pay."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Conv2d, window: _Window) -> None:
        super().__init__()
        self.weight, self.bias, self._window = layer.weight, layer.bias, window
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps [B, O, H, W] of inputs x [B, C, H, W]."""
        weight, bias, window = self.weight, self.bias, self._window
        if x.dim() != 4 or not pays(len(weight), math.prod(window.map(x.shape))):
            own = window.stride, window.padding, window.dilation
            return F.conv2d(x, weight, bias, *own)
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        found: tuple[Tensor, ...] = _Convolve.apply(x.unsqueeze(0), weight.unsqueeze(0), window)
        maps = found[0].squeeze(0)
        return maps if bias is None else maps + bias.view(-1, 1, 1)


def with_columns(module: nn.Module) -> nn.Module:
    """Replace a module's plain Conv2d layers, in place; return the module."""
    layers = [(n, m, w) for n, m in module.named_modules() if (w := _window_of(m))]
    for name, layer, window in layers:
        path, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(path), attribute, ColumnConv2d(layer, window))
    return module


def _window_of(layer: nn.Module) -> _Window | None:
    """Return the window of a Conv2d of torch's own in one group; None of others."""
    if type(layer) is not nn.Conv2d or has_hooks(layer) or "forward" in vars(layer):
        return None
    if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return None
    return _Window(layer.kernel_size, layer.stride, layer.padding, layer.dilation)
