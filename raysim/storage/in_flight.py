"""Clients in flight at a checkpoint of asynchronous rounds: the queue, and the sent groups.

Their training is not stored: a resumed run trains them again, to the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from raysim.api.rules import ClientValues, LocalValues
from raysim.numbers.tensors import Groups, Tensors, flatten, unflatten


@dataclass(frozen=True)
class StartedVersion:
    """Version of the model, as the start of clients.

    Attributes:
        groups: Groups that they received.
        lr: Their learning rate.
        clients: The clients that started together and count, including arrived ones.
        values: Their values of local training.
        cohort: All clients that started together, ascending.
    """

    groups: Groups
    lr: float
    clients: tuple[int, ...]
    values: ClientValues
    cohort: tuple[int, ...]


@dataclass(frozen=True)
class InFlight:
    """Clients in flight between two rounds.

    Attributes:
        queue: The event queue, as plain values.
        versions: The versions that the clients started from, by number.
    """

    queue: Mapping[str, Any]
    versions: Mapping[int, StartedVersion]

    def to_json(self) -> dict[str, Any]:
        """Return all but the tensors as plain values."""
        versions = {
            str(number): {
                "lr": started.lr,
                "clients": started.clients,
                "cohort": started.cohort,
                "values": started.values.common,
                "own_values": [*started.values.own.items()],
            }
            for number, started in self.versions.items()
        }
        return {"queue": dict(self.queue), "versions": versions}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of all versions, named `version/group/name`."""
        return flatten({str(n): flatten(started.groups) for n, started in self.versions.items()})

    @classmethod
    def of(cls, values: Mapping[str, Any], tensors: Tensors) -> InFlight:
        """Restore an instance from the results of `to_json` and `tensors`."""
        groups = {number: unflatten(group) for number, group in unflatten(tensors).items()}
        versions = {
            int(number): StartedVersion(
                groups[number],
                about["lr"],
                tuple(about["clients"]),
                ClientValues(
                    LocalValues(*about["values"]),
                    {
                        client: LocalValues(*client_values)
                        for client, client_values in about["own_values"]
                    },
                ),
                tuple(about["cohort"]),
            )
            for number, about in values["versions"].items()
        }
        return cls(values["queue"], versions)
