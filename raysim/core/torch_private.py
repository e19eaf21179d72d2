"""Private and deprecated parts of torch, each with the public way beside it.

No other module names one. A part is looked up when this module is imported; where it is missing the
public way is taken, which returns the same bits in more time.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor


def _part(path: str) -> Any:
    """Return the part of torch at a dotted path, or None where there is none."""
    try:
        return attrgetter(path)(torch)
    except AttributeError:
        return None


_foreach_add = _part("_foreach_add")
_foreach_add_ = _part("_foreach_add_")
_foreach_mul = _part("_foreach_mul")
_foreach_mul_ = _part("_foreach_mul_")
_foreach_norm = _part("_foreach_norm")
_innermost_transform = _part("_C._functorch.peek_interpreter_stack")


def _runs_foreach(function: Any) -> bool:
    """Return whether a foreach function is there and runs here: under vmap none does."""
    return function is not None and _innermost_transform is not None and not _innermost_transform()


def foreach_add(tensors: Sequence[Tensor], others: Sequence[Tensor], alpha: float) -> list[Tensor]:
    """Return `tensor + alpha * other` of every pair."""
    if _runs_foreach(_foreach_add):
        return list(_foreach_add(tensors, others, alpha=alpha))
    return [torch.add(a, b, alpha=alpha) for a, b in zip(tensors, others, strict=True)]


def foreach_add_(tensors: Sequence[Tensor], others: Sequence[Tensor], alpha: float) -> None:
    """Add `alpha * other` to every tensor in place."""
    if _runs_foreach(_foreach_add_):
        _foreach_add_(tensors, others, alpha=alpha)
        return
    for tensor, other in zip(tensors, others, strict=True):
        tensor.add_(other, alpha=alpha)


def foreach_mul(tensors: Sequence[Tensor], factor: float) -> list[Tensor]:
    """Return every tensor times a factor."""
    if _runs_foreach(_foreach_mul):
        return list(_foreach_mul(tensors, factor))
    return [tensor * factor for tensor in tensors]


def foreach_mul_(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiply every tensor by a factor in place."""
    if _runs_foreach(_foreach_mul_):
        _foreach_mul_(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)


def foreach_norm(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the Euclidean norm of every tensor."""
    if _runs_foreach(_foreach_norm):
        return list(_foreach_norm(tensors))
    return [torch.linalg.vector_norm(tensor) for tensor in tensors]
