"""Copies from and to a GPU that the host does not wait for, until it needs what is read.

Several are asked for one after another, then one wait is for all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from raysim.numbers.arrays import Array
from raysim.numbers.tensors.sets import CPU


def read_later(tensor: Tensor) -> Callable[[], Tensor]:
    """Return a function that returns a tensor on the CPU; a GPU is not waited for until then."""
    if not tensor.is_cuda:
        return lambda: tensor
    there = tensor.to(CPU, non_blocking=True)  # in pinned memory
    copied = torch.cuda.current_stream(tensor.device).record_event()

    def read() -> Tensor:
        if not copied.query():
            copied.synchronize()
        return there

    return read


def sent_to(device: torch.device, numbers: Array) -> Tensor:
    """Return an array on a device; the host does not wait for a GPU."""
    tensor = torch.from_numpy(numbers)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def wait_for(device: torch.device) -> None:
    """Wait for all that a GPU has been asked for."""
    torch.cuda.current_stream(device).synchronize()
