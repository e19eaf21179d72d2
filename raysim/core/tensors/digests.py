"""Digests of arrays and tensors: equal bits have equal digests, in any process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysim.core.tensors.sets import Tensors


def arrays_digest(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """Return the sha256 of dtypes, shapes and values, in hexadecimal."""
    digest = hashlib.sha256()
    for values in arrays:
        digest.update(f"{values.dtype}{values.shape}".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def tensors_digest(tensors: Tensors) -> str:
    """Return the digest of a set of tensors on the CPU, by name."""
    return arrays_digest(bytes_of(tensors[name]) for name in sorted(tensors))


def bytes_of(values: Tensor) -> npt.NDArray[Any]:
    """Return a tensor's bytes as an array; NumPy has no bfloat16."""
    if not values.dim():
        return values.numpy()
    if not values.numel():  # a cast leaves it strides that no view of bytes may have
        values = torch.empty(values.shape, dtype=values.dtype)
    return values.contiguous().view(torch.uint8).numpy()
