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
from raysim.api.method import Asynchrony
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

    def tiers(self, count: int) -> list[list[int]]:
        """Return tiers of equal size; here, in no order."""
        clients = random.Random(f"tiers {self.seed}").sample(range(self.clients), self.clients)
        return [sorted(clients[number::count]) for number in range(count)]

    def clock(self, members: Collection[int]) -> Clock:
        others = {*range(self.clients)} - {*members}

        def draw(number: int, refill: int, most: int, busy: Collection[int], tick: int) -> Any:
            return self.draw(number, refill, most, others | {*busy}, tick)

        return Clock(draw, self.fly, lambda tick, busy: self.wake(tick, others | {*busy}))


def plans(fleet: Fleet, asynchrony: Asynchrony, through: Callable[[Queue], Queue]) -> list[Log]:
    """Return the planned rounds as logs; `through` sees the queue between two rounds."""
    queue, logs = Queue(), []
    clocks = [fleet.clock(members) for members in fleet.tiers(asynchrony.tiers)]
    for number in range(ROUNDS):
        planned = plan_round(asynchrony, clocks, through(queue))
        assert planned.number == number
        queue = planned.after
        logs.append(Log(*map(as_tuples, (planned.started, planned.arrived, planned.dropped))))
        logs[-1].started = [start[:3] for start in logs[-1].started]
    return logs


def as_tuples(flights: Any) -> list[Any]:
    return [(f.client, f.version, f.start, f.arrival) for f in flights]


def written_and_read(queue: Queue) -> Queue:
    return Queue.from_json(json.loads(json.dumps(queue.to_json())))


@settings(max_examples=100)
@given(st.data())
def test_plans_equal_a_walk_tick_by_tick(data):
    clients = data.draw(st.integers(1, 12), "clients")
    concurrency = data.draw(st.integers(1, clients), "concurrency")
    buffer = data.draw(st.none() | st.integers(1, concurrency), "buffer")
    tiers = data.draw(st.integers(1, concurrency), "tiers")
    most = data.draw(st.none() | st.integers(0, 4), "max_staleness")
    fleet = Fleet(
        seed=data.draw(st.integers(0, 10**6), "seed"),
        clients=clients,
        slowest=data.draw(st.sampled_from([1, 2, 5, 40]), "slowest"),
        lost=data.draw(st.sampled_from([0.0, 0.3]), "lost"),
        off=data.draw(st.sampled_from([0.0, 0.5, 0.8]), "off"),
    )
    through = data.draw(st.sampled_from([written_and_read, lambda queue: queue]))
    found = plans(fleet, Asynchrony(buffer, concurrency, most, tiers), through)
    assert found == walk(fleet, (buffer, concurrency, most), ROUNDS, fleet.tiers(tiers))


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 12), st.data())
def test_what_every_plan_keeps(seed, clients, data):
    """Places, buffer and staleness, and a client trains from a version once."""
    concurrency = data.draw(st.integers(1, clients))
    buffer = data.draw(st.integers(1, concurrency))
    clock = Fleet(seed, clients, slowest=9).clock(range(clients))
    queue, seen = Queue(), set()
    for number in range(ROUNDS):
        planned = plan_round(Asynchrony(buffer, concurrency, 2), [clock], queue)
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
    first = plan_round(asynchrony, [clock], Queue())
    # 0, 1 and 2 start at 0. 0 is buffered at 1, when 3 starts; 1 completes the version at 2.
    started = [(0, 0, 0, 1), (1, 0, 0, 2), (2, 0, 0, 3), (3, 0, 1, 5)]
    assert as_tuples(first.started) == started
    assert as_tuples(first.arrived) == [(0, 0, 0, 1), (1, 0, 0, 2)]
    assert (first.after.number, first.after.tick) == (1, 2)
    second = plan_round(asynchrony, [clock], first.after)
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
        rounds.append(plan_round(Asynchrony(1, 3), [clock], queue))
        queue = rounds[-1].after
    assert [as_tuples(r.arrived) for r in rounds[:3]] == [[(c, 0, 0, 1)] for c in range(3)]
    assert [r.staleness(r.arrived[0]) for r in rounds] == [0, 1, 2, 0]
    assert [len(r.started) for r in rounds] == [3, 0, 0, 3]
    assert [f.version for f in rounds[3].started] == [3] * 3


def test_a_stale_update_is_dropped_and_its_place_refills():
    """K=1, M=2: client 2 takes so long that two versions are made before it arrives."""
    clock, queue = fixed({2: 5, 0: 2, 1: 2}), Queue()
    for number in range(2):
        planned = plan_round(Asynchrony(1, 2, max_staleness=1), [clock], queue)
        queue = planned.after
        assert planned.dropped == () and planned.arrived[0].arrival == 2 * (number + 1)
    planned = plan_round(Asynchrony(1, 2, max_staleness=1), [clock], queue)
    assert as_tuples(planned.dropped) == [(2, 0, 0, 5)]
    assert (2, 2, 5, 10) in as_tuples(planned.started)
    assert planned.arrived[0].arrival == 6


SYNCHRONOUS = Asynchrony(None, 3, tiers=2)
"""Tiers of two and one at a time."""


def test_tiers_by_hand():
    """Clients 0 to 2 of 1, 3 and 3 ticks, and 3 and 4 of 5 and 2: a tier waits for its slowest."""
    tiers, queue = [fixed({0: 1, 1: 3, 2: 3}), fixed({3: 5, 4: 2})], Queue()
    first = plan_round(SYNCHRONOUS, tiers, queue)
    assert as_tuples(first.started) == [(0, 0, 0, 3), (1, 0, 0, 3), (3, 0, 0, 5)]
    assert as_tuples(first.arrived) == [(0, 0, 0, 3), (1, 0, 0, 3)]
    second = plan_round(SYNCHRONOUS, tiers, first.after)
    # The first tier starts from version 1 at 3; the second arrives at 5, and its version is 2.
    assert as_tuples(second.started) == [(0, 1, 3, 6), (1, 1, 3, 6)]
    assert as_tuples(second.arrived) == [(3, 0, 0, 5)]
    assert [flight.tier for flight in (*second.started, *second.arrived)] == [0, 0, 1]
    assert [second.staleness(flight) for flight in second.arrived] == [1]
    assert plan_round(SYNCHRONOUS, tiers, second.after).after.tick == 6


def test_a_tier_whose_clients_are_all_lost_begins_again():
    """It makes no version; where one of two is left, that one does."""
    one, other = fixed({0: 1, 1: 3}), fixed({3: 9})

    def fly(client: int, tick: int) -> tuple[int, bool]:
        return one.fly(client, tick)[0], tick < 3 or client == 1

    tiers = [Clock(one.draw, fly, one.wake), other]
    planned = plan_round(SYNCHRONOUS, tiers, Queue())
    assert as_tuples(planned.dropped) == [(0, 0, 0, 3), (1, 0, 0, 3), (1, 0, 3, 6)]
    assert as_tuples(planned.arrived) == [(0, 0, 3, 6)]
    assert as_tuples(planned.after.flights) == [(3, 0, 0, 9)]


def test_tiers_that_arrive_at_one_instant_come_one_by_one_before_any_start():
    tiers, queue = [fixed({7: 2, 1: 1}), fixed({0: 2})], Queue()
    first = plan_round(SYNCHRONOUS, tiers, queue)
    second = plan_round(SYNCHRONOUS, tiers, first.after)
    third = plan_round(SYNCHRONOUS, tiers, second.after)
    assert as_tuples(first.arrived) == [(1, 0, 0, 2), (7, 0, 0, 2)]
    assert as_tuples(second.arrived) == [(0, 0, 0, 2)] and second.started == ()
    assert as_tuples(third.started) == [(7, 2, 2, 4), (1, 2, 2, 4), (0, 2, 2, 4)]


@pytest.mark.parametrize("wake", [None, 7])
def test_the_clock_jumps_to_the_next_client_or_stops(wake):
    """No client is available at first."""

    def draw(number: int, refill: int, most: int, busy: Collection[int], tick: int) -> Any:
        return [] if tick < 7 else [4]

    clock = Clock(draw, lambda client, tick: (tick + 1, False), lambda tick, busy: wake)
    if wake is None:
        with pytest.raises(RunError, match="no client is available any more"):
            plan_round(Asynchrony(1, 1), [clock], Queue())
    else:
        planned = plan_round(Asynchrony(1, 1), [clock], Queue())
        assert as_tuples(planned.arrived) == [(4, 0, 7, 8)]


def test_a_round_whose_clients_are_all_lost_ends_in_an_error(monkeypatch):
    """With 30 lost for one that arrives given up, 29 are borne."""
    monkeypatch.setattr(arrivals, "MOST_LOST", 30)
    clock = fixed({0: 1})
    hopeless = Clock(clock.draw, lambda client, tick: (tick + 1, True), clock.wake)
    with pytest.raises(RunError, match=r"30 of 30 clients dropped out; clock\.dropout"):
        plan_round(Asynchrony(1, 1), [hopeless], Queue())
    seldom = Clock(clock.draw, lambda client, tick: (tick + 1, tick < 29), clock.wake)
    assert len(plan_round(Asynchrony(1, 1), [seldom], Queue()).dropped) == 29
