"""The operations that a step runs below autograd, as source of TorchScript."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from raysim.core.tensors.torch_private import watch_operations

READS = frozenset(
    {
        *(Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__),
        *(Tensor.data_ptr, Tensor.untyped_storage),
    }
)
"""Ways for Python to see a tensor's values that are no operations."""
VALUE_DEPENDENT = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
"""Operations with these tags return a number, or a shape, that depends on values."""
ALIASES = frozenset({"aten::alias", "aten::detach"})
"""Operations that return what they are given."""
CONSTANT = bool | int | float | str | torch.dtype | torch.layout | torch.memory_format | None


class UnrecordableError(Exception):
    """A step does something that cannot be recorded."""


def source_of(step: Callable[[], Sequence[Tensor]], given: Sequence[Tensor]) -> str:
    """Take a step and return the source of a function `step` that does the same.

    Args:
        step: It returns tensors.
        given: The tensors that it may read, which the function takes in this order.

    Raises:
        UnrecordableError: see there.
    """
    script = _ScriptSource(given)
    with _ReadGuard(script), watch_operations(script.write):
        returned = step()
    results = ", ".join(script.argument(tensor) for tensor in returned)
    if script.unsupported_reason:
        raise UnrecordableError(script.unsupported_reason)
    arguments = ", ".join(f"{script.argument(tensor)}: Tensor" for tensor in given)
    return "\n    ".join([f"def step({arguments}):", *script.lines, f"return {results}\n"])


class _ScriptSource:
    """The lines of a script, and the names of the tensors in them."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        self.lines: list[str] = []
        self.unsupported_reason: str | None = None
        self._named: dict[int, tuple[str, Tensor]] = {}  # a tensor that is kept keeps its id
        for tensor in given:
            self._name(tensor)

    def write(self, function: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
        """Add a call and what it returned."""
        name, single = function.name().partition(".")[0], isinstance(out, Tensor)
        if name in ALIASES:
            self._named[id(out)] = (self.argument(args[0]), out)
            return
        if not VALUE_DEPENDENT.isdisjoint(function.tags):
            self.unsupported_reason = f"{name} depends on values"
        given = [self.argument(value) for value in args]
        given += [f"{key}={self.argument(value)}" for key, value in kwargs.items()]
        returned = [self._name(value) for value in ([out] if single else out or ())]
        result = f"{', '.join(returned)} = " if returned else ""
        self.lines.append(f"{result}torch.ops.{name.replace('::', '.')}({', '.join(given)})")

    def argument(self, value: Any) -> str:
        """Return the source of a value."""
        if isinstance(value, Tensor):
            if id(value) not in self._named:
                self.unsupported_reason = f"a tensor {tuple(value.shape)} is from elsewhere"
                return ""
            return self._named[id(value)][0]
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self.argument, value))}]"
        if isinstance(value, torch.device):
            return f"torch.device('{value}')"
        if isinstance(value, CONSTANT):
            return repr(value)
        self.unsupported_reason = f"{type(value).__name__} cannot be recorded"
        return ""

    def _name(self, value: Any) -> str:
        if not isinstance(value, Tensor):
            return "_"
        return self._named.setdefault(id(value), (f"t{len(self._named)}", value))[0]


class _ReadGuard(TorchFunctionMode):
    """Notes what reads values without an operation."""

    def __init__(self, script: _ScriptSource) -> None:
        super().__init__()
        self._script = script

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function in READS:
            self._script.unsupported_reason = f"{function.__name__} reads values"
        return function(*args, **(kwargs or {}))
