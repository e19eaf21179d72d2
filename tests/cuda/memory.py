"""Where tensors lie: labels on the storages of CPU tensors.

A view has its tensor's storage, so it has its label as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.device}
_unwrapped = torch._C._functorch.get_unwrapped
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree of arguments or results."""
    kind = type(tree)
    if kind in PLAIN:  # most of what is asked; isinstance asks a metaclass
        return []
    if kind is Tensor or isinstance(tree, Tensor):
        return [tree]
    if kind is dict:
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return []
    return [tensor for part in tree if type(part) not in PLAIN for tensor in tensors_of(part)]


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor, below vmap and grad; None if it has none."""
    while _is_wrapped(tensor):
        tensor = _unwrapped(tensor)
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def memory_of(tensor: Tensor) -> int:
    """Return a number that tensors have in common that lie in the same memory."""
    return int(tensor.untyped_storage()._cdata)


def is_on_gpu(tensor: Tensor) -> bool:
    """Return whether a tensor lies on the device."""
    return getattr(storage_of(tensor), "on_gpu", False)


def placed(tree: Any, *, on_gpu: bool = True) -> Any:
    """Label the memory of new tensors as the device's, or as the host's; return the tree."""
    for tensor in tensors_of(tree):
        if (storage := storage_of(tensor)) is not None:
            storage.on_gpu = on_gpu
    return tree


def is_pinned(tensor: Tensor) -> bool:
    """Return whether a tensor lies in pinned memory of the host."""
    return getattr(storage_of(tensor), "pinned", False)


def pinned(tensor: Tensor) -> Tensor:
    """Label the memory of a new tensor of the host as pinned; return the tensor."""
    tensor.untyped_storage().pinned = True
    return tensor


def poison(tensor: Tensor) -> None:
    """Fill a tensor with values that nobody may read."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    elif tensor.dtype != torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


@contextmanager
def unseen() -> Iterator[None]:
    """Compute in the body without the device's rules and without autograd."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield
