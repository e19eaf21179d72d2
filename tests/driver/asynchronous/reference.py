"""Reference of the event queue: slow, and without a queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any


@dataclass
class Log:
    """Starts, arrivals that count and others, of one round: client, version and tick of start."""

    started: list[Any] = field(default_factory=list)
    arrived: list[Any] = field(default_factory=list)
    dropped: list[Any] = field(default_factory=list)


def walk(fleet: Any, asynchrony: tuple[int, int, int | None], rounds: int) -> list[Log]:
    """Return the rounds, by looking at every client at every tick.

    Args:
        fleet: Has the number of `clients`, and `draw` and `fly` of `arrivals.Clock`.
        asynchrony: K, M and the greatest staleness.
        rounds: Number of rounds.
    """
    buffer, concurrency, max_staleness = asynchrony
    under_way: dict[int, tuple[int, int, int, bool]] = {}
    buffered: list[int] = []
    logs, version, refill = [Log()], 0, 0
    for tick in count():
        for client in range(fleet.clients):
            version_of, start, arrival, lost = under_way.get(client, (0, 0, -1, False))
            if arrival != tick:
                continue
            del under_way[client]
            stale = max_staleness is not None and version - version_of > max_staleness
            place = logs[-1].dropped if lost or stale else logs[-1].arrived
            place.append((client, version_of, start, tick))
            if not (lost or stale):
                buffered.append(client)
            if len(buffered) == buffer:
                buffered, refill, version = [], 0, version + 1
                logs.append(Log())
            if version == rounds:
                return logs[:-1]
        missing = concurrency - len(under_way)
        if missing:
            drawn = fleet.draw(version, refill, missing, {*under_way, *buffered}, tick)
            refill += len(drawn) > 0
            for client in drawn:
                arrival, lost = fleet.fly(client, tick)
                under_way[client] = (version, tick, arrival, lost)
                logs[-1].started.append((client, version, tick, arrival))
    raise AssertionError("unreachable")
