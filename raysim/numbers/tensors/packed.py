"""Packed tensors: one flat array of bytes per dtype, mapped without a copy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysim.numbers.arrays import Array
from raysim.numbers.tensors.later import read_later
from raysim.numbers.tensors.sets import Groups, Layout, Tensors

BLOCK = 2**18
"""Number of bytes to compare at a time: different models differ in the first ones."""
Buffers = dict[torch.dtype, Array]


def to_arrays(buffers: dict[torch.dtype, Tensor]) -> Buffers:
    """Return the bytes of flat tensors as arrays, which the object store maps without a copy."""
    return {dtype: t.cpu().contiguous().view(torch.uint8).numpy() for dtype, t in buffers.items()}


def as_tensor(array: Array, dtype: torch.dtype | None = None) -> Tensor:
    """Return a read-only view of an array, or of its bytes in another dtype."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        tensor = torch.from_numpy(array)
    return tensor.view(dtype) if dtype else tensor


@dataclass(frozen=True)
class PackedGroup:
    """Set of tensors as flat arrays of bytes."""

    layout: Layout
    arrays: Buffers

    @classmethod
    def of(cls, tensors: Tensors) -> PackedGroup:
        """Pack a set of tensors."""
        layout = Layout.of(tensors)
        with torch.no_grad():
            return cls(layout, to_arrays(layout.pack(tensors)))

    def open(self, device: torch.device) -> dict[str, Tensor]:
        """Return the tensors; on the CPU as read-only views, on a GPU without a wait for it."""
        flat = {dtype: as_tensor(array, dtype) for dtype, array in self.arrays.items()}
        if device.type != "cpu":  # pageable memory would be waited for
            flat = {d: t.pin_memory().to(device, non_blocking=True) for d, t in flat.items()}
        return self.layout.unpack(flat)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def equals(self, other: PackedGroup) -> bool:
        """Return whether another group has the same tensors, bit for bit."""
        return self.layout == other.layout and all(
            np.array_equal(array[start : start + BLOCK], other.arrays[dtype][start : start + BLOCK])
            for dtype, array in self.arrays.items()
            for start in range(0, len(array), BLOCK)
        )


@dataclass(frozen=True)
class PackedTensors:
    """Groups of tensors as flat arrays of bytes, for transport between processes.

    Attributes:
        groups: The non-empty groups.
    """

    groups: dict[str, PackedGroup]

    @classmethod
    def of(cls, groups: Groups) -> PackedTensors:
        """Pack groups of tensors."""
        return cls({name: PackedGroup.of(tensors) for name, tensors in groups.items() if tensors})

    def open(self, device: torch.device) -> dict[str, dict[str, Tensor]]:
        """Return the groups; on the CPU as read-only views of the packed bytes."""
        return {name: group.open(device) for name, group in self.groups.items()}


def on_host_later(tensors: Tensors) -> Callable[[], Tensors]:
    """Return a function that returns tensors on the CPU; from a GPU by one copy of each dtype.

    A GPU is not waited for until then.
    """
    there = {name: tensor for name, tensor in tensors.items() if tensor.is_cuda}
    if not there:
        return lambda: tensors
    layout = Layout.of(there)
    with torch.no_grad():
        reads = {dtype: read_later(flat) for dtype, flat in layout.pack(there).items()}

    def read() -> Tensors:
        return {**tensors, **layout.unpack({dtype: each() for dtype, each in reads.items()})}

    return read


def on_host(tensors: Tensors) -> Tensors:
    """Return tensors on the CPU; from a GPU by one copy of each dtype."""
    return on_host_later(tensors)()


def on_device(tensors: Tensors, device: torch.device) -> Tensors:
    """Return tensors of the CPU on a device; on a GPU by one copy of each dtype."""
    return tensors if device.type == "cpu" else PackedGroup.of(tensors).open(device)
