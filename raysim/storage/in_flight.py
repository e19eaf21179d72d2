"""Clients of asynchronous rounds that are under way at a checkpoint: the queue, and what was sent.

What such clients have trained is no part of it: a resumed run trains them again, to the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from raysim.core.tensors import Groups, Tensors, flatten, unflatten


@dataclass(frozen=True)
class StartedVersion:
    """Version of the model from which clients started.

    Attributes:
        groups: Groups that they received.
        lr: Their learning rate.
        clients: Those that started together and whose updates count, also if they have arrived.
    """

    groups: Groups
    lr: float
    clients: tuple[int, ...]


@dataclass(frozen=True)
class InFlight:
    """Clients under way between two rounds.

    Attributes:
        queue: The event queue, as plain values.
        versions: The versions from which they started, by number.
    """

    queue: Mapping[str, Any]
    versions: Mapping[int, StartedVersion]

    def to_json(self) -> dict[str, Any]:
        """Return everything but the tensors as plain values."""
        versions = {
            str(number): {"lr": started.lr, "clients": started.clients}
            for number, started in self.versions.items()
        }
        return {"queue": dict(self.queue), "versions": versions}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of all versions, named `version/group/name`."""
        return flatten({str(n): flatten(started.groups) for n, started in self.versions.items()})

    @classmethod
    def of(cls, values: Mapping[str, Any], tensors: Tensors) -> InFlight:
        """Return what `to_json` and `tensors` gave."""
        groups = {number: unflatten(found) for number, found in unflatten(tensors).items()}
        versions = {
            int(number): StartedVersion(groups[number], found["lr"], tuple(found["clients"]))
            for number, found in values["versions"].items()
        }
        return cls(values["queue"], versions)
