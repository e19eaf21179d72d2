"""Broadcasts: messages in Ray's object store, whose large tensors lie there once.

The model that is evaluated after a round is the one that the next round sends to its clients: it is
put once, and travels to each node once. So do other groups that do not change, such as the state of
a client that has none yet: a message is compared with the last pass and the last evaluation.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import ray

from raysim.core.tensors.packed import PackedGroup, PackedTensors

Reference = ray.ObjectRef[Any]

OWN_BYTES = 4_000_000
"""Bytes from which a group of tensors is an object of its own: each takes a worker half a ms."""


class _Shared(NamedTuple):
    """A group of tensors, with its reference where it lies in the object store."""

    group: PackedGroup
    reference: Reference | None

    @property
    def sent(self) -> Any:
        """Its part of a message: the reference, if there is one."""
        return self.group if self.reference is None else self.reference


class Broadcasts:
    """Puts messages into the object store."""

    def __init__(self) -> None:
        self._last: dict[type, list[_Shared]] = {}

    def put(self, message: Any) -> Reference:
        """Put a message, with references to its large groups of tensors.

        The message itself has those of the store afterwards: the caller keeps no copy by it.
        """
        if not is_dataclass(message) or isinstance(message, type):
            return ray.put(message)
        shared: list[_Shared] = []
        changes = {}
        for name, own in _groups_of(message).items():
            there = {key: self._shared(group, shared) for key, group in own.items()}
            own |= {key: found.group for key, found in there.items()}
            changes[name] = PackedTensors({key: found.sent for key, found in there.items()})
        self._last[type(message)] = shared
        return ray.put(replace(message, **changes))

    def _shared(self, group: PackedGroup, shared: list[_Shared]) -> _Shared:
        """Return a large group as it lies in the store, put where it does not yet; add it."""
        if group.nbytes < OWN_BYTES:
            return _Shared(group, None)
        there = chain(shared, *self._last.values())
        found = next((each for each in there if group.equals(each.group)), None)
        if found is None:
            reference = ray.put(group)
            found = _Shared(ray.get(reference), reference)  # a view of the store, no copy
        shared.append(found)
        return found


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
