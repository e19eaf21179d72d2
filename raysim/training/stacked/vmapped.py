"""Functions of stacks with a rule for vmap: the clients of all vmapped dimensions are one stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def as_one_stack(
    function: type[torch.autograd.Function],
    size: int,
    in_dims: Sequence[int | None],
    given: Sequence[Any],
) -> tuple[Any, Any]:
    """Return outputs of a function of stacks under vmap, and their vmapped dimensions.

    Args:
        function: It takes and returns tensors [K, ...], None, and values that are no tensors.
        size: Vmapped indices.
        in_dims: The vmapped dimension of each argument.
        given: The arguments, without vmap.
    """
    stacked = [
        _stacked(each, dim, size) if isinstance(each, Tensor) else each
        for each, dim in zip(given, in_dims, strict=True)
    ]
    outputs: tuple[Tensor | None, ...] = function.apply(*stacked)
    return tuple(
        each if each is None else each.reshape(size, -1, *each.shape[1:]) for each in outputs
    ), (0,) * len(outputs)


def _stacked(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Return a tensor [K, ...] of each vmapped index as one of size * K clients, a view if K=1."""
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)
