"""Arrivals of asynchronous rounds: who starts from which version, and who arrives when.

An event queue in virtual time, in whole ticks; ties go by client. At most M clients train at once.
A client that arrives gives its place back, and its update is buffered; K buffered updates make the
next version. An update whose start lies more than `max_staleness` versions back is dropped and does
not count. All arrivals of an instant come before the starts of that instant, which are drawn
jointly, from the newest version. A client whose update is buffered is not drawn until it has been
aggregated, so it gives a version one update at most.

Times do not depend on the model's tensors, so rounds are planned before anything is trained.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from raysim.core.errors import RunError
from raysim.core.method import Asynchrony

MOST_LOST = 1_000_000
"""Clients lost for one that arrives at which a run gives up."""


class Flight(NamedTuple):
    """One client between its start and its arrival; flights sort by arrival, then by client.

    Attributes:
        arrival: Tick of its arrival.
        client: The client.
        version: Version from which it starts.
        start: Tick of its start.
        lost: Whether its device fails on the way, so that it brings no update.
    """

    arrival: int
    client: int
    version: int
    start: int
    lost: bool = False


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
        """Return the versions between the start of one that arrived and this round."""
        return self.number - flight.version


@dataclass(frozen=True)
class Clock:
    """Virtual time of the clients.

    Attributes:
        draw: `draw(number, refill, count, busy, tick)`: at most `count` distinct clients that are
            available at a tick and not busy, for the refill-th draw of a round.
        fly: `fly(client, tick)`: the tick at which a client arrives that starts at a tick, later
            than that, and whether it is lost on the way.
        wake: `wake(tick, busy)`: the first later tick at which a client that is not busy is
            available; None if there is none.
    """

    draw: Callable[[int, int, int, Collection[int], int], Sequence[int]]
    fly: Callable[[int, int], tuple[int, bool]]
    wake: Callable[[int, Collection[int]], int | None]


def plan_round(asynchrony: Asynchrony, clock: Clock, queue: Queue) -> PlannedRound:
    """Play the event queue until the next version is due; return that round.

    Raises:
        RunError: no client is available any more, or almost all are lost.
    """
    number, tick, flights = queue.number, queue.tick, [*queue.flights]
    started: list[Flight] = []
    arrived: list[Flight] = []
    dropped: list[Flight] = []
    refill, busy = 0, {flight.client for flight in flights}
    while True:
        while flights and flights[0].arrival <= tick:
            flight = flights.pop(0)
            if flight.lost or not asynchrony.accepts(number - flight.version):
                dropped.append(flight)
                busy.remove(flight.client)
                _check_lost(number, dropped, arrived)
                continue
            arrived.append(flight)
            if len(arrived) == asynchrony.buffer:
                after = Queue(number + 1, tick, tuple(flights))
                ended = ((*started,), (*arrived,), (*dropped,))
                return PlannedRound(number, queue.tick, *ended, after)
        free = asynchrony.concurrency - len(flights)
        drawn = clock.draw(number, refill, free, busy, tick) if free else ()
        refill += bool(drawn)
        for client in drawn:
            arrival, lost = clock.fly(client, tick)
            started.append(Flight(arrival, client, number, tick, lost))
            insort(flights, started[-1])
        busy.update(drawn)
        woken = clock.wake(tick, busy) if len(drawn) < free else None
        tick = _next_tick(flights, woken)


def _check_lost(number: int, dropped: Sequence[Flight], arrived: Sequence[Flight]) -> None:
    """Check that a round can be hoped to end."""
    if len(dropped) >= MOST_LOST * (1 + len(arrived)):
        raise RunError(
            f"round {number + 1}: of {len(dropped) + len(arrived)} clients {len(dropped)} dropped"
            " out; clock.dropout, or that of clock.table, must be smaller"
        )


def _next_tick(flights: Sequence[Flight], woken: int | None) -> int:
    """Return the next tick at which a client arrives, or one that may start is available."""
    ticks = [flight.arrival for flight in flights[:1]]
    ticks += [] if woken is None else [woken]
    if not ticks:
        raise RunError("no client is available any more: choose other settings of `clock`")
    return min(ticks)
