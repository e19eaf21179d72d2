"""Kernels of the device of CPU memory with the bytes and operations that each of them costs.

A kernel's bytes are those of the tensors that it reads and writes, each once; its FLOP are two for
each multiplication of a product or a convolution, none of others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from tests.cuda.device import CudaDevice
from tests.cuda.graphs import Graph
from tests.cuda.memory import is_on_gpu, tensors_of
from tests.cuda.operations import kernels, name_of

PRODUCTS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2)}
"""Operations that multiply matrices, with the positions of these."""
OVERWRITES = {"copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"}
"""Operations that do not read what they change."""
GATHERS = {"index", "index_select", "gather", "embedding"}
"""Operations that read as much of their first argument as they return."""
SMALL_MAP = 64
"""Most positions of a small map."""


class Kernel(NamedTuple):
    """An operation of the device.

    Attributes:
        kind: "product", "convolution", "grouped convolution", the latter two perhaps with
            " of small maps", or "other".
        launches: Kernels that it is made of.
        bytes: Bytes that they read and write.
        flop: Additions and multiplications of products and convolutions.
    """

    kind: str
    launches: float
    bytes: float
    flop: float


Kernels = Counter[Kernel]
"""How often each kernel runs; in a difference of two runs also less than never."""


class CostedDevice(CudaDevice):
    """The device, which keeps the kernels of all that it is asked for."""

    def __init__(self) -> None:
        super().__init__(lines=False)
        self._outside: Kernels = Counter()
        self._inside: dict[Graph, Kernels] = {}

    @property
    def kernels(self) -> Kernels:
        """Return the kernels that ran so far, those of replayed graphs among them."""
        found = self._outside.copy()
        for graph, own in self._inside.items():
            for kernel, count in own.items():
                found[kernel] += count * graph.replays
        return found

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do an operation by the device's rules, and keep its kernel."""
        moving, found = self._moving, super().run(func, args, kwargs)
        if not moving and (kernel := kernel_of(func, args, kwargs, found)):
            own = self._inside.setdefault(self.capture, Counter()) if self.capture else None
            (self._outside if own is None else own)[kernel] += 1
        return found


def kernel_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any], found: Any) -> Kernel | None:
    """Return what an operation costs the device; None if it runs no kernel there."""
    name, launches = name_of(func), kernels(func, tuple(args))
    read, written = tensors_of((args, kwargs)), tensors_of(found)
    if not launches or not any(map(is_on_gpu, written)):
        return None
    if name in ("copy_", "_to_copy") and not all(map(is_on_gpu, read)):
        return None  # a copy from the host
    sizes = [size_of(tensor) for tensor in read]
    if name in OVERWRITES:
        sizes[: len(written)] = [0] * len(written)
    elif name in GATHERS:
        sizes[0] = min(sizes[0], size_of(written[0]))
    kind, flop = work_of(name, args, written)
    return Kernel(kind, launches, sum(sizes) + sum(map(size_of, written)), flop)


def size_of(tensor: Tensor) -> int:
    """Return a tensor's bytes; what is expanded is there once."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in pairs if stride) * tensor.element_size()


def work_of(name: str, args: Sequence[Any], written: Sequence[Tensor]) -> tuple[str, float]:
    """Return kind and FLOP of an operation."""
    if name in PRODUCTS:
        left, right = (args[position] for position in PRODUCTS[name])
        return "product", 2 * left.numel() * right.shape[-1]
    if name not in ("convolution", "convolution_backward"):
        return "other", 0
    backward = name == "convolution_backward"
    result, weight = (args[0], args[2]) if backward else (written[0], args[1])
    groups, times = (args[9], sum(args[10][:2])) if backward else (args[8], 1)
    kind = "convolution" if groups == 1 else "grouped convolution"
    if math.prod(result.shape[2:]) <= SMALL_MAP:
        kind += " of small maps"
    return kind, times * 2 * result.numel() * math.prod(weight.shape[1:])
