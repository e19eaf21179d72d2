"""Packed tensors: one flat array of bytes per dtype, mapped without a copy."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from raysim.core.tensors.sets import Groups, Layout, Tensors, flatten, unflatten

Buffers = dict[torch.dtype, npt.NDArray[Any]]


def to_arrays(buffers: dict[torch.dtype, Tensor]) -> Buffers:
    """Return the bytes of flat tensors as arrays, which the object store maps without a copy."""
    return {dtype: t.cpu().contiguous().view(torch.uint8).numpy() for dtype, t in buffers.items()}


def as_tensor(array: npt.NDArray[Any], dtype: torch.dtype | None = None) -> Tensor:
    """Return a read-only view of an array, or of its bytes as another dtype."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        tensor = torch.from_numpy(array)
    return tensor.view(dtype) if dtype else tensor


@dataclass(frozen=True)
class PackedTensors:
    """Groups of tensors as flat arrays of bytes, for transport between processes."""

    layout: Layout
    arrays: Buffers

    @classmethod
    def of(cls, groups: Groups) -> PackedTensors:
        """Pack groups of tensors."""
        return cls.of_tensors(flatten(groups))

    @classmethod
    def of_tensors(cls, tensors: Tensors) -> PackedTensors:
        """Pack one set of tensors."""
        layout = Layout.of(tensors)
        with torch.no_grad():
            return cls(layout, to_arrays(layout.pack(tensors)))

    def open(self, device: torch.device) -> dict[str, dict[str, Tensor]]:
        """Return the groups; on the CPU as read-only views of the packed bytes."""
        return unflatten(self.open_tensors(device))

    def open_tensors(self, device: torch.device) -> dict[str, Tensor]:
        """Return one set of tensors; on the CPU as read-only views of the packed bytes."""
        return self.layout.unpack(
            {dtype: as_tensor(array, dtype).to(device) for dtype, array in self.arrays.items()}
        )
