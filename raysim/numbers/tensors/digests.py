"""Digests of arrays and tensors: equal bits have equal digests, in any process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from raysim.numbers.arrays import Array
from raysim.numbers.tensors.sets import Tensors


def arrays_digest(arrays: Iterable[Array]) -> str:
    """Return the sha256 of dtypes, shapes and values, in hexadecimal."""
    digest = hashlib.sha256()
    for values in arrays:
        digest.update(f"{values.dtype}{values.shape}".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def tensors_digest(tensors: Tensors) -> str:
    """Return the digest of a set of tensors on the CPU, by name."""
    return arrays_digest(bytes_of(tensors[name]) for name in sorted(tensors))


def checksums(tensors: Tensors) -> dict[str, int]:
    """Return the sum of each tensor's bytes, in words of 64 bits: in a tenth of a digest's time.

    Other values have another sum but by chance, or in another order.
    """
    sums = {}
    for name, tensor in tensors.items():
        values = bytes_of(tensor.detach()).reshape(-1).view(np.uint8)
        whole = len(values) // 8 * 8
        sums[name] = int(values[:whole].view(np.int64).sum()) + int(values[whole:].sum())
    return sums


def bytes_of(values: Tensor) -> Array:
    """Return a tensor's bytes as an array; NumPy has no bfloat16."""
    if not values.dim():
        return values.numpy()
    if not values.numel():  # a cast leaves it strides that no view of bytes may have
        values = torch.empty(values.shape, dtype=values.dtype)
    return values.contiguous().view(torch.uint8).numpy()
