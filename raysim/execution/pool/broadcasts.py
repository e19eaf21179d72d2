"""Broadcasts: messages in Ray's object store, whose large tensors lie there once.

The model that is evaluated after a round is the one that the next round sends to its clients: it is
put once, and travels to each node once. A call of the driver is compared with the one before it.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import ray

from raysim.core.tensors.packed import PackedGroup, PackedTensors

Reference = ray.ObjectRef[Any]

OWN_BYTES = 4_000_000
"""Bytes from which a group of tensors is an object of its own: each takes a worker half a ms."""


class Broadcasts:
    """Puts messages into the object store."""

    def __init__(self) -> None:
        self._last: list[tuple[PackedGroup, Reference]] = []

    def put(self, message: Any) -> Reference:
        """Put a message, with references to its large groups of tensors."""
        if not is_dataclass(message) or isinstance(message, type):
            return ray.put(message)
        groups: list[tuple[PackedGroup, Reference]] = []
        changes = {
            name: PackedTensors({key: self._shared(group, groups) for key, group in own.items()})
            for name, own in _groups_of(message).items()
        }
        self._last = groups
        return ray.put(replace(message, **changes))

    def _shared(self, group: PackedGroup, groups: list[tuple[PackedGroup, Reference]]) -> Any:
        """Return a reference to a large group, which is put where it is not there; add it."""
        if group.nbytes < OWN_BYTES:
            return group
        for found, reference in (*groups, *self._last):
            if group.equals(found):
                groups.append((found, reference))
                return reference
        reference = ray.put(group)
        groups.append((ray.get(reference), reference))  # a view of the store, no copy
        return reference


def fetch(reference: Reference) -> Any:
    """Return a message with all its tensors."""
    message = ray.get(reference)
    if not is_dataclass(message) or isinstance(message, type):
        return message
    changes = {
        name: PackedTensors(
            {
                key: group if isinstance(group, PackedGroup) else ray.get(group)
                for key, group in own.items()
            }
        )
        for name, own in _groups_of(message).items()
    }
    return replace(message, **changes)


def _groups_of(message: Any) -> dict[str, Any]:
    """Return the groups of each field of a message that holds packed tensors."""
    values = {field.name: getattr(message, field.name) for field in fields(message)}
    return {
        name: value.groups for name, value in values.items() if isinstance(value, PackedTensors)
    }
