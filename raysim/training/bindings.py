"""Tensors of a module as the engine holds them, and what `forward` binds in their place.

A `forward` may bind a buffer to a new tensor (`self.mean = ...`), where the engine holds the one
before: `Bindings.rebound` finds the new ones, `settle` writes their values into the engine's. What
a buffer that is not persistent is bound to for one batch, a mask of its shape, is forgotten. A
buffer that `forward` registers is one that was None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from raysim.core.errors import RunError
from raysim.core.tensors import Tensors
from raysim.core.tensors.torch_private import buffers_of, transient_buffers

_ASSIGNS = "the model's forward assigns the buffer"


class Slot(NamedTuple):
    """A place in a module that holds a buffer.

    Attributes:
        path: Its own name.
        name: That of the engine's tensor, another one where two places hold one tensor; of none
            where the place is empty.
        owner: The module, and the attribute of it.
        key: See `owner`.
        read: Returns what is there.
        transient: Whether the buffer is not persistent.
    """

    path: str
    name: str
    owner: nn.Module
    key: str
    read: Callable[[], object]
    transient: bool


class Bindings:
    """Parameters and buffers of a module, by name.

    Attributes:
        tensors: The engine's.
        buffers: Names of the buffers among them.
    """

    def __init__(self, module: nn.Module) -> None:
        buffers = dict(module.named_buffers())
        self._parameter_slots = [
            (name, module.get_submodule(path), key)
            for name, _ in module.named_parameters()
            for path, _, key in (name.rpartition("."),)
        ]
        names = {id(tensor): name for name, tensor in buffers.items()}
        self._slots = [
            slot for path, owner in module.named_modules() for slot in _slots(path, owner, names)
        ]
        self._keys = [
            (path, owner, held, frozenset(held))
            for path, owner in module.named_modules()
            if isinstance(held := buffers_of(owner), dict)  # a script registers none
        ]
        self.tensors: dict[str, Tensor] = {**dict(module.named_parameters()), **buffers}
        self.buffers = [*buffers]

    def rebound(self) -> dict[str, Tensor]:
        """Return the tensors to which `forward` has bound buffers anew; bind the engine's again.

        Raises:
            RunError: one is no tensor of the buffer's shape and dtype.
        """
        bound = self.tensors
        found = [(s, now) for s in self._slots if (now := s.read()) is not bound.get(s.name)]
        found += self._registered()
        if not found:
            return {}
        self.restore()
        return self._accepted(found, bound)

    def places(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return tensors by name, and again by the other names that a buffer has."""
        return {**tensors, **{s.path: tensors[s.name] for s in self._slots if s.name in tensors}}

    def rebound_among(self, places: Tensors, tensors: Tensors) -> dict[str, Tensor]:
        """Return what `rebound` does, of a call of the module at other tensors than its own.

        Args:
            places: What `places` returned, after the call.
            tensors: Those that it was given.
        """
        found = [
            (slot, now)
            for slot in self._slots
            for now, before in (
                (places[slot.path], tensors[slot.name])
                if slot.name in tensors
                else (slot.read(), self.tensors.get(slot.name)),
            )
            if now is not before
        ]
        found += self._registered()
        self.restore()  # those that the call was not given
        accepted = self._accepted(found, self.tensors | dict(tensors)) if found else {}
        return {name: tensor for name, tensor in accepted.items() if name in tensors}

    def settle(self, rebound: Tensors) -> dict[str, Tensor]:
        """Copy the values of buffers that are bound anew into the engine's; return the engine's."""
        with torch.no_grad():
            values = {name: tensor.clone() for name, tensor in rebound.items()}  # of each other too
            for name, value in values.items():
                self.tensors[name].copy_(value)
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
                    f"the model's forward replaces the parameter {name}: a parameter must be"
                    " changed in place, for example by copy_ under torch.no_grad()"
                )

    def restore(self) -> None:
        """Bind the engine's buffers again."""
        for slot in self._slots:
            own = self.tensors.get(slot.name)
            if slot.read() is not own:
                setattr(slot.owner, slot.key, own)
        for slot, _ in self._registered():
            delattr(slot.owner, slot.key)

    def check_registered(self) -> None:
        """Check that a call of the module registered no buffer.

        Raises:
            RunError: it did.
        """
        self._accepted(self._registered(), {})

    def _registered(self) -> list[tuple[Slot, object]]:
        """Return the places of buffers that `forward` has registered, and what is there."""
        return [
            (slot, slot.read())
            for path, owner, held, keys in self._keys
            if len(held) != len(keys)
            for slot in _slots(path, owner, {})
            if slot.key not in keys
        ]

    def _accepted(self, found: Iterable[tuple[Slot, object]], bound: Tensors) -> dict[str, Tensor]:
        """Return what buffers are bound to, by the engine's names, if it can take their place."""
        now = {slot.path: value for slot, value in found}
        assigned = {slot.name: slot.path for slot, _ in found}
        accepted: dict[str, Tensor] = {}
        for slot, value in found:
            before = bound.get(slot.name)
            if before is not None and _are_alike(value, before):
                accepted[slot.name] = value  # type: ignore[assignment]
            elif not slot.transient:
                absent = "which was None" if slot in self._slots else "which was not registered"
                was = absent if before is None else _shown(before)
                to_be = "" if before is None else f", to be {_shown(value)}"
                raise RunError(
                    f"{_ASSIGNS} {slot.path}, {was}{to_be}: a buffer must keep its shape and dtype"
                )
        for slot in self._slots:
            if slot.name in accepted and now.get(slot.path) is not accepted[slot.name]:
                raise RunError(
                    f"{_ASSIGNS} {assigned[slot.name]}, but not {slot.path}, which is the same one:"
                    " change it in place"
                )
        return accepted


def _slots(prefix: str, owner: nn.Module, names: dict[int, str]) -> list[Slot]:
    """Return the places of a module's own buffers.

    Args:
        prefix: The module's name.
        owner: The module.
        names: The engine's names, by identity of the tensors.
    """
    slots = []
    held = buffers_of(owner)
    for key, tensor in held.items():
        path = f"{prefix}.{key}".lstrip(".")
        # A dictionary is read 20 times faster than the attribute; a script has none.
        is_plain = isinstance(held, dict)
        read = partial(held.get, key) if is_plain else partial(getattr, owner, key, None)
        transient = key in transient_buffers(owner)
        slots.append(Slot(path, names.get(id(tensor), path), owner, key, read, transient))
    return slots


def _are_alike(found: object, bound: Tensor) -> bool:
    same = isinstance(found, Tensor) and (found.shape, found.dtype) == (bound.shape, bound.dtype)
    return bool(same)


def _shown(found: object) -> str:
    if isinstance(found, Tensor):
        return f"{str(found.dtype).removeprefix('torch.')}{[*found.shape]}"
    return type(found).__name__
