"""Writing down, as TorchScript, the operations that a step runs below autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from raysim.core.torch_private import watch_operations

READS = frozenset(
    {
        *(Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__),
        *(Tensor.data_ptr, Tensor.untyped_storage),
    }
)
"""Ways for Python to see a tensor's values that are no operations."""
UNSURE = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
"""Operations with these tags return a number, or a shape, that depends on values."""
SAME = frozenset({"aten::alias", "aten::detach"})
"""Operations that return what they are given."""
PLAIN = bool | int | float | str | torch.dtype | torch.layout | torch.memory_format | None


class RefusedError(Exception):
    """A step does something that cannot be written down."""


def source_of(step: Callable[[], Sequence[Tensor]], given: Sequence[Tensor]) -> str:
    """Take a step and return the source of a function `step` that does the same.

    Args:
        step: It returns tensors.
        given: The tensors that it may read, which the function takes in this order.

    Raises:
        RefusedError: see there.
    """
    page = _Page(given)
    with _Reads(page), watch_operations(page.write):
        returned = step()
    results = ", ".join(page.argument(tensor) for tensor in returned)
    if page.refusal:
        raise RefusedError(page.refusal)
    arguments = ", ".join(f"{page.argument(tensor)}: Tensor" for tensor in given)
    return "\n    ".join([f"def step({arguments}):", *page.lines, f"return {results}\n"])


class _Page:
    """The lines that are written, and the names of the tensors in them."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        self.lines: list[str] = []
        self.refusal: str | None = None
        self._named: dict[int, tuple[str, Tensor]] = {}  # a tensor that is kept keeps its id
        for tensor in given:
            self._name(tensor)

    def write(self, function: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
        """Write a call and what it returned."""
        name, single = function.name().partition(".")[0], isinstance(out, Tensor)
        if name in SAME:
            self._named[id(out)] = (self.argument(args[0]), out)
            return
        if not UNSURE.isdisjoint(function.tags):
            self.refusal = f"{name} depends on values"
        given = [self.argument(value) for value in args]
        given += [f"{key}={self.argument(value)}" for key, value in kwargs.items()]
        returned = [self._name(value) for value in ([out] if single else out or ())]
        result = f"{', '.join(returned)} = " if returned else ""
        self.lines.append(f"{result}torch.ops.{name.replace('::', '.')}({', '.join(given)})")

    def argument(self, value: Any) -> str:
        """Return how a value is written."""
        if isinstance(value, Tensor):
            if id(value) not in self._named:
                self.refusal = f"a tensor {tuple(value.shape)} is from elsewhere"
                return ""
            return self._named[id(value)][0]
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self.argument, value))}]"
        if isinstance(value, torch.device):
            return f"torch.device('{value}')"
        if isinstance(value, PLAIN):
            return repr(value)
        self.refusal = f"{type(value).__name__} cannot be written down"
        return ""

    def _name(self, value: Any) -> str:
        if not isinstance(value, Tensor):
            return "_"
        return self._named.setdefault(id(value), (f"t{len(self._named)}", value))[0]


class _Reads(TorchFunctionMode):
    """Refuses what reads values without an operation."""

    def __init__(self, page: _Page) -> None:
        super().__init__()
        self._page = page

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function in READS:
            self._page.refusal = f"{function.__name__} reads values"
        return function(*args, **(kwargs or {}))
