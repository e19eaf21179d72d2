"""Event queue of asynchronous rounds: starts and arrivals of clients in virtual time.

Time is counted in ticks. Ties are broken by tier, then by client. At most M clients train at once.
When a client arrives, its place is free and its update is buffered; K buffered updates make the
next version. An update is dropped if its staleness exceeds `max_staleness`; it does not count.

At each instant, all arrivals come before the starts. The clients that start are drawn jointly and
get the newest version. A client with a buffered update is not drawn until the update is aggregated,
so it contributes at most one update to a version.

Each tier of clients has its share of the M places. Without K, a tier is synchronous: clients that
start together also arrive together, when the last of them ends, and make the next version.

Times do not depend on tensors, so rounds are planned before clients train.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from raysim.api.method import Asynchrony
from raysim.errors import RunError

MOST_LOST = 100_000
"""Lost clients for each arrival at which a run gives up."""


class Flight(NamedTuple):
    """Client between its start and its arrival.

    Attributes:
        arrival: Tick of the arrival.
        client: The client.
        version: The version that the client starts from.
        start: Tick of the start.
        lost: Whether the client's device drops out, so that no update arrives.
        tier: The client's tier.
    """

    arrival: int
    client: int
    version: int
    start: int
    lost: bool = False
    tier: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """Sort key of the queue."""
        return self.arrival, self.tier, self.client


@dataclass(frozen=True)
class Queue:
    """State of the event queue between two rounds.

    Attributes:
        number: Number of the next round, and of the current version.
        tick: Current virtual time.
        flights: Flights in the queue, sorted.
    """

    number: int = 0
    tick: int = 0
    flights: tuple[Flight, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the queue as plain values."""
        return {"number": self.number, "tick": self.tick, "flights": [*map(list, self.flights)]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Queue:
        """Return the queue from the values of `to_json`."""
        flights = tuple(Flight(*flight) for flight in values["flights"])
        return cls(values["number"], values["tick"], flights)


@dataclass(frozen=True)
class PlannedRound:
    """Plan of one round.

    Attributes:
        number: Rounds before this one; also the version that clients start from in it.
        begin: Tick at which the round begins.
        started: Clients that start, in the order of their draws.
        arrived: Clients whose updates make the next version, in the order of their arrivals.
        dropped: Clients without a usable update: too stale, or lost.
        after: The queue after the round.
    """

    number: int
    begin: int
    started: tuple[Flight, ...]
    arrived: tuple[Flight, ...]
    dropped: tuple[Flight, ...]
    after: Queue

    def staleness(self, flight: Flight) -> int:
        """Return the number of versions between the start of a client and this round."""
        return self.number - flight.version


@dataclass(frozen=True)
class Clock:
    """Virtual time of the clients of a tier.

    Attributes:
        draw: `draw(number, refill, count, busy, tick)` returns at most `count` distinct clients of
            the tier that are available at `tick` and not busy; `refill` counts a round's draws.
        fly: `fly(client, tick)` returns the later tick at which a client that starts at `tick`
            ends, and whether it is lost.
        wake: `wake(tick, busy)` returns the first later tick at which a client of the tier is
            available and not busy; None if there is none.
    """

    draw: Callable[[int, int, int, Collection[int], int], Sequence[int]]
    fly: Callable[[int, int], tuple[int, bool]]
    wake: Callable[[int, Collection[int]], int | None]


def plan_round(asynchrony: Asynchrony, tiers: Sequence[Clock], queue: Queue) -> PlannedRound:
    """Run the event queue until the next version is due; return the round.

    Args:
        asynchrony: The overlap of rounds.
        tiers: The clock of each tier.
        queue: The queue after the previous round.

    Raises:
        RunError: no client is available any more, or almost all clients are lost.
    """
    play = _Play(asynchrony, queue.number, queue.tick, [*queue.flights])
    while not play.arrivals():
        woken = [play.starts(tier, clock) for tier, clock in enumerate(tiers)]
        ticks = [flight.arrival for flight in play.flights[:1]]
        ticks += [tick for tick in woken if tick is not None]
        if not ticks:
            raise RunError("no client is available any more: choose other settings of `clock`")
        play.tick = min(ticks)
    after = Queue(play.number + 1, play.tick, tuple(play.flights))
    ended = ((*play.started,), (*play.arrived,), (*play.dropped,))
    return PlannedRound(play.number, queue.tick, *ended, after)


@dataclass
class _Play:
    """Planning of one round.

    Attributes:
        asynchrony: The overlap of rounds.
        number: Rounds before this one.
        tick: Current virtual time.
        flights: Flights in the queue, sorted by place.
        started: See `PlannedRound`.
        arrived: See `PlannedRound`.
        dropped: See `PlannedRound`.
        refill: Draws of this round so far.
        busy: Clients that are in flight, or whose updates are buffered.
        under_way: Number of clients in flight, by tier.
    """

    asynchrony: Asynchrony
    number: int
    tick: int
    flights: list[Flight]
    started: list[Flight] = field(default_factory=list)
    arrived: list[Flight] = field(default_factory=list)
    dropped: list[Flight] = field(default_factory=list)
    refill: int = 0

    def __post_init__(self) -> None:
        self.busy = {flight.client for flight in self.flights}
        self.under_way = Counter(flight.tier for flight in self.flights)

    def arrivals(self) -> bool:
        """Process arrivals up to now until a version is due; return whether one is."""
        flights, number = self.flights, self.number
        while flights and flights[0].arrival <= self.tick:
            flight = flights.pop(0)
            self.under_way[flight.tier] -= 1
            if flight.lost or not self.asynchrony.accepts(number - flight.version):
                self.dropped.append(flight)
                self.busy.remove(flight.client)
                _check_lost(number, self.dropped, self.arrived)
            else:
                self.arrived.append(flight)
            if self._is_due(flight.tier):
                return True
        return False

    def starts(self, tier: int, clock: Clock) -> int | None:
        """Start clients of a tier; return the next tick at which another one may start."""
        free = self._free(tier)
        drawn = clock.draw(self.number, self.refill, free, self.busy, self.tick) if free else ()
        begun = []
        for client in drawn:
            arrival, lost = clock.fly(client, self.tick)
            begun.append(Flight(arrival, client, self.number, self.tick, lost, tier))
        if begun and self.asynchrony.buffer is None:
            last = max(flight.arrival for flight in begun)
            begun = [flight._replace(arrival=last) for flight in begun]
        for flight in begun:
            insort(self.flights, flight, key=attrgetter("place"))
        self.started += begun
        self.refill += bool(begun)
        self.busy.update(drawn)
        self.under_way[tier] += len(begun)
        return clock.wake(self.tick, self.busy) if self._free(tier) else None

    def _free(self, tier: int) -> int:
        """Return the number of clients of a tier that may start now."""
        overlap = self.asynchrony
        if overlap.buffer is None and self.under_way[tier]:
            return 0
        share, more = divmod(overlap.concurrency, overlap.tiers)
        return share + (tier < more) - self.under_way[tier]

    def _is_due(self, tier: int) -> bool:
        """Return whether a version is due after a client of a tier arrived or was dropped."""
        if self.asynchrony.buffer is not None:
            return len(self.arrived) == self.asynchrony.buffer
        return bool(self.arrived) and not self.under_way[tier]


def _check_lost(number: int, dropped: Sequence[Flight], arrived: Sequence[Flight]) -> None:
    """Check that a round is likely to end."""
    if len(dropped) >= MOST_LOST * (1 + len(arrived)):
        raise RunError(
            f"round {number + 1}: {len(dropped)} of {len(dropped) + len(arrived)} clients dropped"
            " out; clock.dropout, or that of clock.table, must be smaller"
        )
