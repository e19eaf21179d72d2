"""Plans of asynchronous rounds: by hand, and against a reference that walks tick by tick."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim import RunError
from raysim.core.method import Asynchrony
from raysim.driver.asynchronous import arrivals
from raysim.driver.asynchronous.arrivals import Clock, Queue, plan_round
from tests.driver.asynchronous.reference import Log, walk

ROUNDS = 12


@dataclass(frozen=True)
class Fleet:
    """Clients with random times: each is on for some ticks of a period, and off for the others.

    Attributes:
        seed: Seed of times and draws.
        clients: Their number K.
        slowest: Greatest duration of a client's work.
        lost: Fraction of the starts that bring no update.
        off: Fraction of the ticks in which a client cannot start.
    """

    seed: int
    clients: int
    slowest: int
    lost: float = 0.0
    off: float = 0.0

    def draw(self, number: int, refill: int, most: int, busy: Collection[int], tick: int) -> Any:
        free = [c for c in range(self.clients) if c not in busy and self.is_on(c, tick)]
        draws = random.Random(f"draw {self.seed} {number} {refill}")
        return draws.sample(free, min(most, len(free)))

    def fly(self, client: int, tick: int) -> tuple[int, bool]:
        draws = random.Random(f"fly {self.seed} {client} {tick}")
        return tick + draws.randint(1, self.slowest), draws.random() < self.lost

    def is_on(self, client: int, tick: int) -> bool:
        shift = random.Random(f"on {self.seed} {client}").random()
        return (tick / 10 + shift) % 1 >= self.off

    def wake(self, tick: int, busy: Collection[int]) -> int | None:
        later = range(tick + 1, tick + 21)
        free = [client for client in range(self.clients) if client not in busy]
        return next((t for t in later if any(self.is_on(client, t) for client in free)), None)

    @property
    def clock(self) -> Clock:
        return Clock(self.draw, self.fly, self.wake)


def plans(fleet: Fleet, asynchrony: Asynchrony, through: Callable[[Queue], Queue]) -> list[Log]:
    """Return the planned rounds as logs; `through` sees the queue between two rounds."""
    queue, logs = Queue(), []
    for number in range(ROUNDS):
        planned = plan_round(asynchrony, fleet.clock, through(queue))
        assert planned.number == number
        queue = planned.after
        logs.append(Log(*map(as_tuples, (planned.started, planned.arrived, planned.dropped))))
    return logs


def as_tuples(flights: Any) -> list[Any]:
    return [(f.client, f.version, f.start, f.arrival) for f in flights]


def written_and_read(queue: Queue) -> Queue:
    return Queue.from_json(json.loads(json.dumps(queue.to_json())))


@settings(max_examples=50)
@given(st.data())
def test_plans_equal_a_walk_tick_by_tick(data):
    clients = data.draw(st.integers(1, 12), "clients")
    concurrency = data.draw(st.integers(1, clients), "concurrency")
    buffer = data.draw(st.integers(1, concurrency), "buffer")
    most = data.draw(st.none() | st.integers(0, 4), "max_staleness")
    fleet = Fleet(
        seed=data.draw(st.integers(0, 10**6), "seed"),
        clients=clients,
        slowest=data.draw(st.sampled_from([1, 2, 5, 40]), "slowest"),
        lost=data.draw(st.sampled_from([0.0, 0.3]), "lost"),
        off=data.draw(st.sampled_from([0.0, 0.5, 0.8]), "off"),
    )
    through = data.draw(st.sampled_from([written_and_read, lambda queue: queue]))
    found = plans(fleet, Asynchrony(buffer, concurrency, most), through)
    assert found == walk(fleet, (buffer, concurrency, most), ROUNDS)


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 12), st.data())
def test_what_every_plan_keeps(seed, clients, data):
    """Places, buffer and staleness, and a client trains from a version once."""
    concurrency = data.draw(st.integers(1, clients))
    buffer = data.draw(st.integers(1, concurrency))
    fleet = Fleet(seed, clients, slowest=9)
    queue, seen = Queue(), set()
    for number in range(ROUNDS):
        planned = plan_round(Asynchrony(buffer, concurrency, 2), fleet.clock, queue)
        queue = planned.after
        assert len(planned.arrived) == buffer == len({f.client for f in planned.arrived})
        assert all(0 <= number - flight.version <= 2 for flight in planned.arrived)
        assert all(number - flight.version > 2 for flight in planned.dropped)
        assert len(queue.flights) <= concurrency
        begun = [(flight.client, number) for flight in planned.started]
        assert len({*begun}) == len(begun) and seen.isdisjoint(begun)
        seen |= {*begun}


def fixed(times: dict[int, int]) -> Clock:
    """Return a clock of clients with fixed durations, drawn by number."""

    def draw(number: int, refill: int, most: int, busy: Collection[int], tick: int) -> Any:
        return [client for client in times if client not in busy][:most]

    return Clock(draw, lambda client, tick: (tick + times[client], False), lambda tick, busy: None)


def test_by_hand():
    """K=2, M=3, clients of 1, 2, 3 and 4 ticks: each start takes the lowest free client."""
    clock, asynchrony = fixed({0: 1, 1: 2, 2: 3, 3: 4}), Asynchrony(2, 3)
    first = plan_round(asynchrony, clock, Queue())
    # 0, 1 and 2 start at 0. 0 is buffered at 1, when 3 starts; 1 completes the version at 2.
    started = [(0, 0, 0, 1), (1, 0, 0, 2), (2, 0, 0, 3), (3, 0, 1, 5)]
    assert as_tuples(first.started) == started
    assert as_tuples(first.arrived) == [(0, 0, 0, 1), (1, 0, 0, 2)]
    assert (first.after.number, first.after.tick) == (1, 2)
    second = plan_round(asynchrony, clock, first.after)
    # 0 starts again at 2 from version 1, and arrives with 2 at 3: the client with the lower id
    # counts first. Both make version 2.
    assert as_tuples(second.started) == [(0, 1, 2, 3)]
    assert as_tuples(second.arrived) == [(0, 1, 2, 3), (2, 0, 0, 3)]
    assert [second.staleness(flight) for flight in second.arrived] == [0, 1]


def test_an_instant_may_make_several_versions_before_any_start():
    """Equal clients, K=1 and M=3: three versions at tick 1, then three starts from the last."""
    clock, queue = fixed({0: 1, 1: 1, 2: 1}), Queue()
    rounds = []
    for _ in range(4):
        rounds.append(plan_round(Asynchrony(1, 3), clock, queue))
        queue = rounds[-1].after
    assert [as_tuples(r.arrived) for r in rounds[:3]] == [[(c, 0, 0, 1)] for c in range(3)]
    assert [r.staleness(r.arrived[0]) for r in rounds] == [0, 1, 2, 0]
    assert [len(r.started) for r in rounds] == [3, 0, 0, 3]
    assert [f.version for f in rounds[3].started] == [3] * 3


def test_a_stale_update_is_dropped_and_its_place_refills():
    """K=1, M=2: client 2 takes so long that two versions are made before it arrives."""
    clock, queue = fixed({2: 5, 0: 2, 1: 2}), Queue()
    for number in range(2):
        planned = plan_round(Asynchrony(1, 2, max_staleness=1), clock, queue)
        queue = planned.after
        assert planned.dropped == () and planned.arrived[0].arrival == 2 * (number + 1)
    planned = plan_round(Asynchrony(1, 2, max_staleness=1), clock, queue)
    assert as_tuples(planned.dropped) == [(2, 0, 0, 5)]
    assert (2, 2, 5, 10) in as_tuples(planned.started)
    assert planned.arrived[0].arrival == 6


@pytest.mark.parametrize("wake", [None, 7])
def test_the_clock_jumps_to_the_next_client_or_stops(wake):
    """No client is available at first."""

    def draw(number: int, refill: int, most: int, busy: Collection[int], tick: int) -> Any:
        return [] if tick < 7 else [4]

    clock = Clock(draw, lambda client, tick: (tick + 1, False), lambda tick, busy: wake)
    if wake is None:
        with pytest.raises(RunError, match="no client is available any more"):
            plan_round(Asynchrony(1, 1), clock, Queue())
    else:
        planned = plan_round(Asynchrony(1, 1), clock, Queue())
        assert as_tuples(planned.arrived) == [(4, 0, 7, 8)]


def test_a_round_whose_clients_are_all_lost_ends_in_an_error(monkeypatch):
    """With 30 lost for one that arrives given up, 29 are borne."""
    monkeypatch.setattr(arrivals, "MOST_LOST", 30)
    clock = fixed({0: 1})
    hopeless = Clock(clock.draw, lambda client, tick: (tick + 1, True), clock.wake)
    with pytest.raises(RunError, match=r"of 30 clients 30 dropped out; clock\.dropout"):
        plan_round(Asynchrony(1, 1), hopeless, Queue())
    seldom = Clock(clock.draw, lambda client, tick: (tick + 1, tick < 29), clock.wake)
    assert len(plan_round(Asynchrony(1, 1), seldom, Queue()).dropped) == 29
