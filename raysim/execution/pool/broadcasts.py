"""Broadcasts: messages in Ray's object store, which holds their large tensors once.

The model evaluated after a round is the one that the next round sends to its clients: it is put
once, and travels to each node once. So do other unchanged groups, such as the initial client state:
a message is compared with the last pass and the last evaluation.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import ray

from raysim.numbers.tensors.packed import PackedGroup, PackedTensors

Reference = ray.ObjectRef[Any]

OWN_BYTES = 4_000_000
"""Least bytes of a group of tensors with a separate object: each object costs a worker 0.5 ms."""


class _Shared(NamedTuple):
    """Group of tensors, with its reference if it is in the object store."""

    group: PackedGroup
    reference: Reference | None

    @property
    def sent(self) -> Any:
        """Part of a message: the reference if there is one, else the group."""
        return self.group if self.reference is None else self.reference


class Broadcasts:
    """Messages of a process in the object store."""

    def __init__(self) -> None:
        self._last: dict[type, list[_Shared]] = {}

    def put(self, message: Any) -> Reference:
        """Put a message, with references to its large groups of tensors.

        Afterwards the message itself refers to the groups in the store, so that no copy is kept.
        """
        if not is_dataclass(message) or isinstance(message, type):
            return ray.put(message)
        shared: list[_Shared] = []
        changes = {}
        for name, tensors in _groups_of(message).items():
            stored = {key: self._shared(group, shared) for key, group in tensors.items()}
            tensors |= {key: entry.group for key, entry in stored.items()}
            changes[name] = PackedTensors({key: entry.sent for key, entry in stored.items()})
        self._last[type(message)] = shared
        return ray.put(replace(message, **changes))

    def _shared(self, group: PackedGroup, shared: list[_Shared]) -> _Shared:
        """Return a large group in the store, put there if it is new, and add it to `shared`."""
        if group.nbytes < OWN_BYTES:
            return _Shared(group, None)
        known = chain(shared, *self._last.values())
        stored = next((entry for entry in known if group.equals(entry.group)), None)
        if stored is None:
            reference = ray.put(group)
            stored = _Shared(ray.get(reference), reference)  # a view of the store, no copy
        shared.append(stored)
        return stored


def fetch(reference: Reference) -> Any:
    """Return a message with all its tensors."""
    message = ray.get(reference)
    if not is_dataclass(message) or isinstance(message, type):
        return message
    changes = {
        name: PackedTensors(
            {
                key: group if isinstance(group, PackedGroup) else ray.get(group)
                for key, group in tensors.items()
            }
        )
        for name, tensors in _groups_of(message).items()
    }
    return replace(message, **changes)


def _groups_of(message: Any) -> dict[str, Any]:
    """Return the groups of each field of a message that holds packed tensors."""
    values = {field.name: getattr(message, field.name) for field in fields(message)}
    return {
        name: value.groups for name, value in values.items() if isinstance(value, PackedTensors)
    }
