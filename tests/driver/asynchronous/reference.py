"""Reference of the event queue: slow, and without a queue."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any


@dataclass
class Log:
    """Starts, arrivals that count and others, of one round: client, version and tick of start.

    Arrivals also have their own tick.
    """

    started: list[Any] = field(default_factory=list)
    arrived: list[Any] = field(default_factory=list)
    dropped: list[Any] = field(default_factory=list)


def walk(
    fleet: Any,
    asynchrony: tuple[int | None, int, int | None],
    rounds: int,
    tiers: Sequence[Collection[int]] = (),
) -> list[Log]:
    """Return the rounds, by looking at every client at every tick.

    Args:
        fleet: Has the number of `clients`, and `draw` and `fly` of `arrivals.Clock`.
        asynchrony: K, M and the greatest staleness; without K tiers are synchronous.
        rounds: Number of rounds.
        tiers: The clients of each tier; none: all are one.
    """
    tiers = tiers or [range(fleet.clients)]
    found = Walk(fleet, *asynchrony)
    for tick in count():
        for tier in tiers:
            found.arrive({*tier}, tick)
        if len(found.logs) > rounds:
            return found.logs[:rounds]
        for number, tier in enumerate(tiers):
            places = [place for place in range(found.most) if place % len(tiers) == number]
            found.start({*tier}, len(places), tick)
    raise AssertionError("unreachable")


def tiers_by_hand(ticks: Sequence[int], count: int) -> list[list[int]]:
    """Return the clients of each tier, dealt one by one to the tier that is next to be filled."""
    order = sorted(range(len(ticks)), key=lambda client: (ticks[client], client))
    sizes = [len(range(number, len(ticks), count)) for number in range(count)]
    return [[order.pop(0) for _ in range(size)] for size in sizes]


class Walk:
    """Clients that are walked along; the last log is that of the round under way."""

    def __init__(self, fleet: Any, buffer: int | None, most: int, stalest: int | None) -> None:
        self.fleet, self.buffer, self.most, self.stalest = fleet, buffer, most, stalest
        self.under_way: dict[int, tuple[int, int, int, bool]] = {}
        self.buffered: list[int] = []
        self.logs, self.refill = [Log()], 0

    @property
    def version(self) -> int:
        return len(self.logs) - 1

    def arrive(self, tier: set[int], tick: int) -> None:
        own = sorted(tier & self.under_way.keys())
        ended = [client for client in own if self.under_way[client][2] <= tick]
        if self.buffer is None and len(ended) < len(own):
            return  # waits for the slowest
        for client in ended:
            version, start, _, lost = self.under_way.pop(client)
            stale = self.stalest is not None and self.version - version > self.stalest
            place = self.logs[-1].dropped if lost or stale else self.logs[-1].arrived
            place.append((client, version, start, tick))
            self.buffered += [] if lost or stale else [client]
            if len(self.buffered) == self.buffer:
                self.make_version()
        if self.buffer is None and self.buffered:
            self.make_version()

    def make_version(self) -> None:
        self.buffered, self.refill = [], 0
        self.logs.append(Log())

    def start(self, tier: set[int], places: int, tick: int) -> None:
        at_work = len(tier & self.under_way.keys())
        free = places - at_work
        if not free or (self.buffer is None and at_work):
            return
        others = {*range(self.fleet.clients)} - tier
        busy = {*self.under_way, *self.buffered} | others
        drawn = self.fleet.draw(self.version, self.refill, free, busy, tick)
        self.refill += len(drawn) > 0
        for client in drawn:
            end, lost = self.fleet.fly(client, tick)
            self.under_way[client] = (self.version, tick, end, lost)
            self.logs[-1].started.append((client, self.version, tick))
