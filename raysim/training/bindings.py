"""Tensors of a module as the engine holds them, and what `forward` binds in their place.

A `forward` may bind a buffer to a new tensor (`self.mean = ...`), where the engine holds the one
before: `Bindings.rebound` finds the new ones, `settle` writes their values into the engine's.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from raysim.core.errors import RunError
from raysim.core.tensors import Tensors
from raysim.core.tensors.torch_private import absent_buffers

Slot = tuple[str, nn.Module, str]
"""Name of a tensor, the module that owns it, and its attribute."""
_ASSIGNS = "the model's forward assigns the buffer"
_SHAPED = "a buffer must keep its shape and dtype"


class Bindings:
    """Parameters and buffers of a module, by name.

    Attributes:
        tensors: The engine's.
        buffers: Names of the buffers among them.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameter_slots = _slots(module, dict(module.named_parameters()))
        self._buffer_slots = _slots(module, dict(module.named_buffers()))
        self._absent_slots = _slots(module, absent_buffers(module))
        slots = [*self._parameter_slots, *self._buffer_slots]
        self.tensors: dict[str, Tensor] = {name: getattr(owner, key) for name, owner, key in slots}
        self.buffers = [name for name, _, _ in self._buffer_slots]

    def rebound(self) -> dict[str, Tensor]:
        """Return the tensors to which `forward` has bound buffers anew, by name.

        Raises:
            RunError: one is no tensor of the buffer's shape and dtype.
        """
        if not self._buffer_slots and not self._absent_slots:
            return {}
        for name, owner, key in self._absent_slots:
            if getattr(owner, key) is not None:
                setattr(owner, key, None)
                raise RunError(f"{_ASSIGNS} {name}, which was None: {_SHAPED}")
        bound = self.tensors
        return {
            name: alike(name, getattr(owner, key), bound[name])
            for name, owner, key in self._buffer_slots
            if getattr(owner, key) is not bound[name]
        }

    def settle(self, rebound: Tensors) -> dict[str, Tensor]:
        """Copy the values of buffers that are bound anew into the engine's; return the engine's."""
        with torch.no_grad():
            for name, tensor in rebound.items():
                self.tensors[name].copy_(tensor)
        self.restore()
        return {name: self.tensors[name] for name in rebound}

    def check_parameters(self, detached: Tensors) -> None:
        """Check that parameters are what they were, and lie where their aliases do.

        Raises:
            RunError: `forward` replaced one, whose steps are then lost.
        """
        for name, owner, key in self._parameter_slots:
            now = getattr(owner, key)
            moved = name in detached and detached[name].data_ptr() != now.data_ptr()
            if moved or now is not self.tensors[name]:
                raise RunError(
                    f"the model's forward replaces the parameter {name}: must change it in place,"
                    " for example by copy_ under torch.no_grad()"
                )

    def restore(self) -> None:
        """Bind the engine's buffers again."""
        for name, owner, key in self._buffer_slots:
            setattr(owner, key, self.tensors[name])


def _slots(module: nn.Module, names: Iterable[str]) -> list[Slot]:
    """Return the name of each tensor, the module that owns it, and its attribute."""
    paths = [(name, *name.rpartition(".")) for name in names]
    return [(name, module.get_submodule(path), key) for name, path, _, key in paths]


def alike(name: str, found: object, bound: Tensor) -> Tensor:
    """Return what a buffer is bound to, if it is a tensor like the one before."""
    if isinstance(found, Tensor) and (found.shape, found.dtype) == (bound.shape, bound.dtype):
        return found
    shown = _shown(found) if isinstance(found, Tensor) else type(found).__name__
    raise RunError(f"{_ASSIGNS} {name}, {_shown(bound)}, to be {shown}: {_SHAPED}")


def _shown(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{[*tensor.shape]}"
