"""Padding of stacked clients, and BatchNorm that ignores it.

torch's own BatchNorm updates its statistics in place and knows no padding. This one computes the
same as a function of tensors and returns the new statistics to the caller of the step.

Legend: B batch, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor, nn

from raysim.numbers.layers import BATCH_NORMS
from raysim.numbers.tensors import at_least_float32
from raysim.numbers.tensors.torch_private import has_hooks

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


@dataclass
class Padding:
    """Padding and new statistics that a network's layers share in a forward pass.

    Attributes:
        weights: 1 for a sample and 0 for padding [B], or None without padding.
        updates: New statistics by buffer name, filled by the pass.
    """

    weights: Tensor | None = None
    updates: dict[str, Tensor] = field(default_factory=dict)

    @contextmanager
    def of(self, weights: Tensor | None) -> Iterator[dict[str, Tensor]]:
        """Share the weights of a batch for a forward pass, and yield the pass's updates."""
        self.weights, self.updates = weights, {}
        try:
            yield self.updates
        finally:
            self.weights, self.updates = None, {}


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
        shape = (1, -1, *(1,) * (x.dim() - 2))  # of one value per channel
        axes = (0, *range(2, x.dim()))
        values, weights = at_least_float32(x), self._padding.weights
        per_sample = values[0, 0].numel()
        if weights is None:
            count = values.new_full((), len(values) * per_sample)
            masked = values
        else:
            count = (weights.sum() * per_sample).clamp(min=1)
            weights = weights.view(-1, *(1,) * (x.dim() - 1))
            masked = values * weights
        mean = masked.sum(axes) / count
        centred = values - mean.view(shape)
        squares = centred.square() if weights is None else centred.square() * weights
        variance = squares.sum(axes) / count
        if self.training:
            self._record(mean.detach(), (variance * count / (count - 1).clamp(min=1)).detach())
        scaled = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None and self.bias is not None:
            scaled = scaled * self.weight.view(shape) + self.bias.view(shape)
        return scaled.to(x.dtype)

    def _record(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.momentum is None:
            return
        updates, old = self._padding.updates, 1 - self.momentum
        updates[f"{self._name}.running_mean"] = old * self.running_mean + self.momentum * mean
        updates[f"{self._name}.running_var"] = old * self.running_var + self.momentum * variance
        if self.num_batches_tracked is not None:
            updates[f"{self._name}.num_batches_tracked"] = self.num_batches_tracked + 1


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
