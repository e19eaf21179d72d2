"""Event queue of asynchronous rounds: starts and arrivals of clients in virtual time.

Time is in whole ticks; ties go by tier, then by client. At most M clients train at once. A client
that arrives gives its place back, and its update is buffered; K buffered updates make the next
version. An update whose staleness exceeds `max_staleness` is dropped and does not count. All
arrivals of an instant come before the starts of that instant, which are drawn jointly, from the
newest version. A client whose update is buffered is not drawn until it has been aggregated, so it
gives a version one update at most.

Each tier of the clients has its share of the M places. Without K a tier is synchronous: its clients
that start together arrive together, when the last has ended, and make the next version.

Times do not depend on the model's tensors, so rounds are planned before anything is trained.
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
"""Lost clients per arrival at which a run gives up."""


class Flight(NamedTuple):
    """One client between its start and its arrival.

    Attributes:
        arrival: Tick of its arrival.
        client: The client.
        version: Version from which it starts.
        start: Tick of its start.
        lost: Whether its device drops out, so that no update arrives.
        tier: Its tier.
    """

    arrival: int
    client: int
    version: int
    start: int
    lost: bool = False
    tier: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """Its place in the queue."""
        return self.arrival, self.tier, self.client


@dataclass(frozen=True)
class Queue:
    """State of the event queue between two rounds.

    Attributes:
        number: Number of the next round, which is the current version.
        tick: Current virtual time.
        flights: Clients under way, sorted.
    """

    number: int = 0
    tick: int = 0
    flights: tuple[Flight, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return this state as plain values."""
        return {"number": self.number, "tick": self.tick, "flights": [*map(list, self.flights)]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Queue:
        """Return the state that `to_json` gave."""
        flights = tuple(Flight(*flight) for flight in values["flights"])
        return cls(values["number"], values["tick"], flights)


@dataclass(frozen=True)
class PlannedRound:
    """Plan of one round.

    Attributes:
        number: Rounds before this one, which is the version from which clients start in it.
        begin: Tick at which it begins.
        started: Clients that start, in the order of their draws.
        arrived: Clients whose updates make the next version, in the order of their arrival.
        dropped: Clients that arrived without a usable update: too stale, or lost.
        after: The queue after the round.
    """

    number: int
    begin: int
    started: tuple[Flight, ...]
    arrived: tuple[Flight, ...]
    dropped: tuple[Flight, ...]
    after: Queue

    def staleness(self, flight: Flight) -> int:
        """Return the versions between the start of an arrived client and this round."""
        return self.number - flight.version


@dataclass(frozen=True)
class Clock:
    """Virtual time of the clients of a tier.

    Attributes:
        draw: `draw(number, refill, count, busy, tick)`: at most `count` distinct clients of the
            tier that are available at a tick and not busy, in draw `refill` of a round.
        fly: `fly(client, tick)`: the later tick at which a client that starts at `tick` ends, and
            whether it is lost.
        wake: `wake(tick, busy)`: the first later tick at which a client of the tier that is not
            busy is available; None if there is none.
    """

    draw: Callable[[int, int, int, Collection[int], int], Sequence[int]]
    fly: Callable[[int, int], tuple[int, bool]]
    wake: Callable[[int, Collection[int]], int | None]


def plan_round(asynchrony: Asynchrony, tiers: Sequence[Clock], queue: Queue) -> PlannedRound:
    """Run the event queue until the next version is due; return that round.

    Args:
        asynchrony: The overlap of rounds.
        tiers: The times of the clients of each tier.
        queue: The queue after the round before.

    Raises:
        RunError: no client is available any more, or almost all are lost.
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
    """Round that is being planned.

    Attributes:
        asynchrony: The overlap of rounds.
        number: Rounds before this one.
        tick: Current virtual time.
        flights: Clients under way, sorted by place.
        started: As in `PlannedRound`.
        arrived: Likewise.
        dropped: Likewise.
        refill: Draws of this round so far.
        busy: Clients that are under way, or buffered.
        under_way: Clients under way, by tier.
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
        """Process the arrivals up to now, until a version is due; return whether one is."""
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
        """Start clients of a tier; return the next tick at which one can take a free place."""
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
        """Return whether a version is due, as a client of a tier has arrived or been dropped."""
        if self.asynchrony.buffer is not None:
            return len(self.arrived) == self.asynchrony.buffer
        return bool(self.arrived) and not self.under_way[tier]


def _check_lost(number: int, dropped: Sequence[Flight], arrived: Sequence[Flight]) -> None:
    """Check that a round is likely to end."""
    if len(dropped) >= MOST_LOST * (1 + len(arrived)):
        raise RunError(
            f"round {number + 1}: of {len(dropped) + len(arrived)} clients {len(dropped)} dropped"
            " out; clock.dropout, or that of clock.table, must be smaller"
        )
