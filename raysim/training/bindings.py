"""Bindings of a module's buffers: the engine's tensors, and new ones that `forward` binds.

A `forward` may bind a buffer to a new tensor (`self.mean = ...`), while the engine holds the old
one: `Bindings.rebound` finds the new tensors, `settle` writes their values into the engine's. New
tensors of buffers that are not persistent, such as masks of one batch, are dropped. `forward` may
register a buffer only where it was None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from raysim.errors import RunError
from raysim.numbers.tensors import Tensors, base_of
from raysim.numbers.tensors.torch_private import buffers_of, transient_buffers

_ASSIGNS = "the model's forward assigns the buffer"


class Slot(NamedTuple):
    """Attribute of a module that holds a buffer.

    Attributes:
        path: Dotted name of the attribute.
        name: Name of the engine's tensor: differs from `path` if two slots share one tensor, and
            names no tensor if the slot is empty.
        owner: The module that has the attribute.
        key: The attribute's name in `owner`.
        read: Returns the slot's present value.
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
        tensors: The engine's tensors.
        buffers: Names of the buffers among `tensors`.
        base: The tensors of the network's base, which are none of the engine's.
    """

    def __init__(self, module: nn.Module) -> None:
        buffers = dict(module.named_buffers())
        parameters = dict(module.named_parameters())
        self._parameter_slots = [
            (name, module.get_submodule(path), key)
            for name in parameters
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
        self.base = base_of(module)
        everything = {**parameters, **buffers}
        self.tensors = {n: t for n, t in everything.items() if n not in self.base}
        self.buffers = [name for name in buffers if name in self.tensors]

    def rebound(self) -> dict[str, Tensor]:
        """Return the new tensors of buffers that `forward` has bound; bind the engine's again.

        Raises:
            RunError: a new value is no tensor of the buffer's shape and dtype.
        """
        held = self._held
        changed = [(s, now) for s in self._slots if (now := s.read()) is not held(s.name)]
        changed += self._registered()
        if not changed:
            return {}
        self.restore()
        return self._accepted(changed, self.tensors)

    def places(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return tensors by name, and shared buffers also by their further names."""
        return {**tensors, **{s.path: tensors[s.name] for s in self._slots if s.name in tensors}}

    def rebound_among(self, places: Tensors, tensors: Tensors) -> dict[str, Tensor]:
        """Return the result of `rebound` after a call of the module with other tensors.

        Args:
            places: Result of `places`, after the call.
            tensors: Argument of `places`.
        """
        changed = [
            (slot, now)
            for slot in self._slots
            for now, before in (
                (places[slot.path], tensors[slot.name])
                if slot.name in tensors
                else (slot.read(), self._held(slot.name)),
            )
            if now is not before
        ]
        changed += self._registered()
        self.restore()  # the buffers that were no argument of the call
        accepted = self._accepted(changed, self.tensors | dict(tensors)) if changed else {}
        return {name: tensor for name, tensor in accepted.items() if name in tensors}

    def settle(self, rebound: Tensors) -> dict[str, Tensor]:
        """Copy the values of rebound buffers into the engine's tensors, and return these."""
        with torch.no_grad():
            values = {
                name: tensor.clone() for name, tensor in rebound.items()
            }  # one may be the old tensor of another
            for name, value in values.items():
                self.tensors[name].copy_(value)
        return {name: self.tensors[name] for name in rebound}

    def check_parameters(self, detached: Tensors) -> None:
        """Check that parameters are the same tensors, and share the memory of their aliases.

        Raises:
            RunError: `forward` replaced a parameter, so its steps would be lost.
        """
        for name, owner, key in self._parameter_slots:
            bound = getattr(owner, key)
            moved = name in detached and detached[name].data_ptr() != bound.data_ptr()
            if moved or bound is not self._held(name):
                how = "changed in place, for example by copy_ under torch.no_grad()"
                how = "left as it is, as it is frozen" if name in self.base else how
                raise RunError(
                    f"the model's forward replaces the parameter {name}: a parameter must be {how}"
                )

    def _held(self, name: str) -> Tensor | None:
        """Return the tensor that the module holds between calls of `forward`."""
        return self.tensors[name] if name in self.tensors else self.base.get(name)

    def restore(self) -> None:
        """Bind the engine's buffers again, and those of the base."""
        for slot in self._slots:
            bound = self._held(slot.name)
            if slot.read() is not bound:
                setattr(slot.owner, slot.key, bound)
        for slot, _ in self._registered():
            delattr(slot.owner, slot.key)

    def check_registered(self) -> None:
        """Check that a call of the module registered no buffer.

        Raises:
            RunError: the call registered a buffer.
        """
        self._accepted(self._registered(), {})

    def _registered(self) -> list[tuple[Slot, object]]:
        """Return the slots of buffers that `forward` has registered, with their values."""
        return [
            (slot, slot.read())
            for path, owner, held, keys in self._keys
            if len(held) != len(keys)
            for slot in _slots(path, owner, {})
            if slot.key not in keys
        ]

    def _accepted(
        self, changed: Iterable[tuple[Slot, object]], bound: Tensors
    ) -> dict[str, Tensor]:
        """Return new tensors by the engine's names, if they can replace the engine's tensors."""
        values = {slot.path: value for slot, value in changed}
        assigned = {slot.name: slot.path for slot, _ in changed}
        accepted: dict[str, Tensor] = {}
        for slot, value in changed:
            before = bound.get(slot.name)
            if slot.name in self.base:
                if not slot.transient:
                    raise RunError(
                        f"{_ASSIGNS} {slot.path}, which must stay as it is: no parameter of its"
                        " module is trained"
                    )
            elif before is not None and _are_alike(value, before):
                accepted[slot.name] = value  # type: ignore[assignment]
            elif not slot.transient:
                absent = "which was None" if slot in self._slots else "which was not registered"
                was = absent if before is None else _shown(before)
                to_be = "" if before is None else f", to be {_shown(value)}"
                raise RunError(
                    f"{_ASSIGNS} {slot.path}, {was}{to_be}: a buffer must keep its shape and dtype"
                )
        for slot in self._slots:
            if slot.name in accepted and values.get(slot.path) is not accepted[slot.name]:
                raise RunError(
                    f"{_ASSIGNS} {assigned[slot.name]}, but not {slot.path}, which is the same one:"
                    " change it in place"
                )
        return accepted


def _slots(prefix: str, owner: nn.Module, names: dict[int, str]) -> list[Slot]:
    """Return the slots of a module's own buffers.

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


def _are_alike(value: object, bound: Tensor) -> bool:
    same = isinstance(value, Tensor) and (value.shape, value.dtype) == (bound.shape, bound.dtype)
    return bool(same)


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{[*value.shape]}"
    return type(value).__name__
