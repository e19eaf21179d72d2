"""Several inputs of a sample, a mapping or a tuple of arrays, as one row of numbers.

Between a user's arrays and the user's module they are one array [N, F], so that all that gathers,
stacks, pads and records samples knows one input alone. Floating-point values have the type of the
model, as other inputs have; whole numbers are exact up to MOST_EXACT.

Legend: N samples, F numbers of a sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysim.errors import DataError
from raysim.federation.samples import Inputs
from raysim.numbers.arrays import Array

MOST_EXACT = 2**24
"""float32 represents all whole numbers up to this one."""

LAYOUT = "_raysim_inputs"
"""Attribute of a module that takes rows of several inputs: their layout."""


@dataclass(frozen=True)
class SeveralInputs:
    """Shapes and types of the inputs of a sample, in order.

    Attributes:
        names: Names of a mapping's inputs; empty for a tuple.
        shapes: Shapes of a sample's inputs.
        dtypes: Their types, by NumPy's names.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def width(self) -> int:
        """F, the numbers of a sample."""
        return sum(map(math.prod, self.shapes))

    @property
    def named(self) -> str:
        """The inputs in words, by name or number."""
        if self.names:
            return f"the inputs {', '.join(self.names)}"
        return f"a tuple of {len(self.shapes)} inputs"

    def attach(self, module: nn.Module) -> nn.Module:
        """Unpack rows of numbers before the module's `forward`, into inputs by name or in order.

        A call with separate inputs passes them on. If a user's function returns the same module
        each time, the hook is attached once, and the last layout holds.
        """
        if not hasattr(module, LAYOUT):
            module.register_forward_pre_hook(_unpacked, with_kwargs=True)
        setattr(module, LAYOUT, self)
        return module

    def unpacked(self, args: Any, kwargs: Any) -> Any:
        """Return the arguments of `forward` for the arguments of a call."""
        packed = args[0] if len(args) == 1 and not kwargs else None
        if not isinstance(packed, Tensor) or packed.shape[1:] != (self.width,):
            return args, kwargs
        parts = packed.split_with_sizes([math.prod(shape) for shape in self.shapes], dim=1)
        inputs = [
            _typed(part.reshape(len(packed), *shape), dtype)
            for part, shape, dtype in zip(parts, self.shapes, self.dtypes, strict=True)
        ]
        if self.names:
            return (), dict(zip(self.names, inputs, strict=True))
        return tuple(inputs), {}


def _unpacked(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return getattr(module, LAYOUT).unpacked(args, kwargs)


def _typed(values: Tensor, dtype: str) -> Tensor:
    """Return values in their type; floating-point values keep the model's type."""
    wanted: torch.dtype = getattr(torch, dtype)
    return values if wanted.is_floating_point else values.to(wanted)


def packed(inputs_by_name: Mapping[str, Inputs]) -> tuple[SeveralInputs | None, dict[str, Array]]:
    """Return the inputs of each set as one array, and their layout if they are several.

    Args:
        inputs_by_name: Inputs of each set, by the name of the set in errors.

    Raises:
        DataError: sets have other inputs than the first one, or a number is too large.
    """
    parts = {name: _parts_of(inputs) for name, inputs in inputs_by_name.items()}
    first = next(iter(parts))
    for name, part in parts.items():  # a mapping's order means nothing
        if part.keys() == parts[first].keys():
            parts[name] = {key: part[key] for key in parts[first]}
    for name, part in parts.items():
        if _layout(part) != _layout(parts[first]):
            raise DataError(
                f"{name}: a sample has the inputs {_shown(part)}; must be as in {first},"
                f" {_shown(parts[first])}"
            )
    if not isinstance(inputs_by_name[first], dict | tuple):
        return None, {name: part[""] for name, part in parts.items()}
    types = {key: np.result_type(*(part[key] for part in parts.values())) for key in parts[first]}
    layout = SeveralInputs(
        tuple(map(str, parts[first])) if isinstance(inputs_by_name[first], dict) else (),
        tuple(values.shape[1:] for values in parts[first].values()),
        tuple(_torch_name(dtype) for dtype in types.values()),
    )
    return layout, {name: _row(name, part) for name, part in parts.items()}


def _parts_of(inputs: Inputs) -> dict[Any, Array]:
    if isinstance(inputs, dict):
        return inputs
    return dict(enumerate(inputs)) if isinstance(inputs, tuple) else {"": inputs}


def _layout(parts: Mapping[Any, Array]) -> Any:
    several = "" not in parts  # shapes of a single input are compared elsewhere
    return [(key, values.shape[1:] if several else ()) for key, values in parts.items()]


def _shown(parts: Mapping[Any, Array]) -> str:
    return ", ".join(f"{key}{[*values.shape[1:]]}" for key, values in parts.items())


def _torch_name(dtype: np.dtype[Any]) -> str:
    """Return a type that torch has: whole numbers are int64 in a model, as torch's indices are."""
    return "bool" if dtype.kind == "b" else "int64" if dtype.kind in "iu" else "float32"


def _row(name: str, parts: Mapping[Any, Array]) -> Array:
    for key, values in parts.items():
        if values.dtype.kind == "c":
            raise DataError(f"{name}: input {key} is complex; several inputs must be real")
        if values.dtype.kind in "iu" and values.size:
            beyond = np.argwhere((values > MOST_EXACT) | (values < -MOST_EXACT))
            if len(beyond):
                raise DataError(
                    f"{name}, sample {beyond[0][0]}: input {key} is"
                    f" {values[tuple(beyond[0])]}; several inputs have whole numbers up to 2^24"
                )
    rows = [values.reshape(len(values), -1).astype(np.float64) for values in parts.values()]
    return np.concatenate(rows, axis=1)
