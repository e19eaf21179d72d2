"""Virtual time of asynchronous rounds: against the reference on a fleet, and its columns."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raysim
from raysim.api.method import Asynchrony
from raysim.clock.availability import TICKS_PER_SECOND
from raysim.clock.devices import Devices
from raysim.clock.fleet import Fleet
from raysim.driver.asynchronous.arrivals import Clock, Flight, PlannedRound, Queue
from raysim.driver.asynchronous.plan import Plan
from raysim.driver.asynchronous.times import DeviceTimes, tiers_of
from tests.driver.asynchronous.draws import clocks_of, uniform_draws
from tests.driver.asynchronous.reference import tiers_by_hand, walk
from tests.tasks import StopAfter, make_settings, make_task, model_of

SIZES = (3, 40, 17, 8, 25, 60, 5, 12, 30)
BUFFERED = {
    "method.name": "fedbuff",
    "method.buffer": 2,
    "method.concurrency": 6,
    "method.max_staleness": 3,
    "rounds": 8,
    "clock.name": "devices",
}
SCALE = 2000
"""Ticks that are one in the reference, which looks at every tick."""


@dataclass(frozen=True)
class Times:
    """Times of a fleet, as the reference asks for them; all of them multiples of SCALE.

    Attributes:
        fleet: The fleet.
        ticks: Ticks of each client's work.
    """

    fleet: Fleet
    ticks: Any

    @property
    def clients(self) -> int:
        return len(self.ticks)

    def draw(self, number: int, refill: int, most: int, busy: Any, tick: int) -> Any:
        draws = uniform_draws(0, np.arange(self.clients), self.fleet.available)
        return draws(number, refill, most, busy, tick * SCALE)

    def fly(self, client: int, tick: int) -> tuple[int, bool]:
        share = self.fleet.dropouts([client], tick * SCALE)[0]
        return tick + int(self.ticks[client]) // SCALE, share < 1


def rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have work last whole multiples of SCALE, and clients drop out at the end of it."""
    ticks, dropouts = Fleet.ticks, Fleet.dropouts

    def whole(fleet: Fleet, *amounts: Any) -> Any:
        return -(-ticks(fleet, *amounts) // SCALE) * SCALE

    def at_the_end(fleet: Fleet, clients: Any, *keys: int) -> Any:
        return np.where(dropouts(fleet, clients, *keys) < 1, 1 - 1e-12, np.inf)

    monkeypatch.setattr(Fleet, "ticks", whole)
    monkeypatch.setattr(Fleet, "dropouts", at_the_end)


def times_of(fleet: Any, ticks: Any, joules: Any = None) -> DeviceTimes:
    """Return times of clients that send and receive nothing."""
    nothing = np.zeros_like(ticks)
    return DeviceTimes(fleet, ticks, nothing if joules is None else joules, nothing, nothing)


TIERED = {
    "method.name": "fedat",
    "method.tiers": 3,
    "method.concurrency": 7,
    "rounds": 8,
    "clock.name": "devices",
}
METHODS = {"buffer": (BUFFERED, (2, 6, 3), 1), "tiers": (TIERED, (None, 7, None), 3)}
"""Settings; K, M and the greatest staleness; number of tiers."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_rounds_of_a_fleet_are_those_of_the_reference(tmp_path, monkeypatch, dropout, method):
    rounded(monkeypatch)
    method, asynchrony, count = METHODS[method]
    options = {**method, "clock.dropout": dropout, "rounds": 24}
    result = raysim.run(make_settings(tmp_path, **options), make_task(SIZES))
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    work = {row["client"]: round(row["virtual_seconds"] * TICKS_PER_SECOND) for row in rows}
    assert {*work} == {*range(len(SIZES))} and len({*work.values()}) > 3
    fleet = Devices(dropout=dropout).fleet(len(SIZES), 0)
    times = Times(fleet, [work[client] for client in range(len(SIZES))])
    walked = walk(times, asynchrony, 24, tiers_by_hand(times.ticks, count))
    found = [
        (r["round"], r["client"], r["version"], round(r["virtual_start"] * TICKS_PER_SECOND))
        for r in rows
    ]
    expected = [
        (n + 1, client, version, start * SCALE)
        for n, log in enumerate(walked)
        for client, version, start, _ in log.arrived
    ]
    assert sorted(found) == sorted(expected)
    assert (sum(result.metrics["lost_clients"].to_pylist()) > 0) == (dropout > 0)
    ends = np.cumsum(result.metrics["virtual_seconds"].to_pylist())
    for number, log in enumerate(walked):
        assert ends[number] * TICKS_PER_SECOND == pytest.approx(log.arrived[-1][3] * SCALE)


def test_columns_of_clients_and_rounds(tmp_path):
    """A client arrives by the end of its round; the last one at it. Energy is that of its work."""
    result = raysim.run(make_settings(tmp_path, **BUFFERED), make_task(SIZES))
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    end = 0.0
    for row in result.metrics.to_pylist():
        own = [r for r in rows if r["round"] == row["round"]]
        arrivals = [r["virtual_start"] + r["virtual_seconds"] for r in own]
        assert all(end - 1e-9 <= arrival for arrival in arrivals)
        end += row["virtual_seconds"]
        assert max(arrivals) == pytest.approx(end)
        assert row["updates_dropped"] == 0
        assert row["virtual_joules"] == pytest.approx(sum(r["virtual_joules"] for r in own))


def test_clients_of_a_tier_wait_for_the_slowest_but_work_no_longer_for_it(tmp_path):
    """Those of a round start together; it ends with the slowest, and energy is that of work."""
    result = raysim.run(make_settings(tmp_path, **TIERED | {"rounds": 12}), make_task(SIZES))
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    seconds = {row["client"]: row["virtual_seconds"] for row in rows}
    ends = np.cumsum(result.metrics["virtual_seconds"].to_pylist())
    tiers = {}
    for row, end in zip(result.metrics.to_pylist(), ends, strict=True):
        own = [r for r in rows if r["round"] == row["round"]]
        assert len({r["virtual_start"] for r in own}) == len({r["version"] for r in own}) == 1
        slowest = max(r["virtual_seconds"] for r in own)
        assert own[0]["virtual_start"] + slowest == pytest.approx(end)
        assert [r["virtual_seconds"] for r in own] == [seconds[r["client"]] for r in own]
        assert row["virtual_joules"] == pytest.approx(sum(r["virtual_joules"] for r in own))
        tiers |= dict.fromkeys((r["client"] for r in own), int(row["tier"]))
    order = sorted(seconds, key=lambda client: (seconds[client], client))
    assert [tiers[client] for client in order] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.data())
def test_tiers_are_those_dealt_by_hand(ticks, data):
    count = data.draw(st.integers(1, len(ticks)))
    found = [tier.tolist() for tier in tiers_of(np.array(ticks), count)]
    assert found == [sorted(tier) for tier in tiers_by_hand(ticks, count)]


def test_a_tier_draws_and_waits_for_its_own_clients_alone(tmp_path):
    """Client 1 is on from second 50 to 60, and client 0, the faster one, from 100 to 200."""
    (tmp_path / "windows.csv").write_text("client,start,end\n0,100,200\n1,50,60\n")
    fleet = Devices(windows=str(tmp_path / "windows.csv")).fleet(2, 0)
    first, second = clocks_of(times_of(fleet, np.array([1, 2])), 0, 2)
    assert first.wake(0, ()) == 100 * TICKS_PER_SECOND and first.wake(0, [0]) is None
    assert second.wake(0, ()) == 50 * TICKS_PER_SECOND
    for clock, client, seconds in ((first, 0, 150), (second, 1, 55)):
        assert clock.draw(0, 0, 2, (), seconds * TICKS_PER_SECOND) == [client]
        assert clock.draw(0, 0, 2, (), (205 - seconds) * TICKS_PER_SECOND) == []


@settings(max_examples=10)  # each takes 0.3 s
@given(st.integers(0, 99), st.integers(1, 3), st.integers(3, 9), st.floats(0.01, 0.1))
def test_rounds_are_alike_where_nobody_is_passed_over_who_is_away(seed, tiers, most, on):
    """Devices are off for half an hour on average: tiers are away for whole rounds."""
    fleet = Devices(on_hours=on, off_hours=0.5, dropout=0.3).fleet(9, seed)
    ticks = 40_000_000 * np.arange(1, 10)
    clocks = clocks_of(times_of(fleet, ticks), seed, tiers)
    plain = [
        Clock(
            uniform_draws(seed, members, fleet.available),
            clock.fly,
            lambda t, b, m=members: first_of(fleet, m, t, b),
        )
        for clock, members in zip(clocks, tiers_of(ticks, tiers), strict=True)
    ]
    for asynchrony in (Asynchrony(None, most, tiers=tiers), Asynchrony(2, most)):
        count = asynchrony.tiers if asynchrony.buffer is None else 1
        one, other = (Plan(asynchrony, each[:count], Queue(), 12) for each in (clocks, plain))
        assert [one.round(n) for n in range(12)] == [other.round(n) for n in range(12)]


def first_of(fleet: Fleet, members: Any, tick: int, busy: Any) -> int | None:
    """Return the first later tick at which one of a tier is available that is not busy."""
    others = [client for client in members if client not in busy]
    return fleet.first_available(others, tick + 1) if others else None


def test_a_tier_that_is_away_is_looked_through_once(tmp_path, monkeypatch):
    """Of four clients the slow two come after an hour; until then the others make 60 rounds."""
    windows = "client,start,end\n0,0,86400\n1,0,86400\n2,3600,86400\n3,3600,86400\n"
    (tmp_path / "windows.csv").write_text(windows)
    fleet = Devices(windows=str(tmp_path / "windows.csv")).fleet(4, 0)
    asked, available = list[int](), Fleet.available
    monkeypatch.setattr(
        Fleet, "available", lambda f, clients, t: asked.extend(clients) or available(f, clients, t)
    )
    ticks = TICKS_PER_SECOND * np.array([30, 30, 60, 60])
    plan = Plan(Asynchrony(None, 2, tiers=2), clocks_of(times_of(fleet, ticks), 0, 2), Queue(), 60)
    planned = [plan.round(number) for number in range(60)]
    assert planned[-1].after.tick == 1800 * TICKS_PER_SECOND
    assert sum(client > 1 for client in asked) == 2


def test_a_million_clients_are_split_and_drawn_in_seconds():
    clients, begun = 10**6, time.perf_counter()
    fleet = Devices(on_hours=4.0).fleet(clients, 0)
    ticks = fleet.ticks(np.arange(clients), 1e9, 1e6, 1e6)
    plan = Plan(
        Asynchrony(None, 100, tiers=5),
        clocks_of(times_of(fleet, ticks), 0, 5),
        Queue(),
        20,
    )
    arrived = [flight for number in range(20) for flight in plan.round(number).arrived]
    assert time.perf_counter() - begun < 10  # 1 s on a core of 2.5 GHz; a loop takes minutes
    bounds = np.quantile(ticks, [0.2, 0.4, 0.6, 0.8])
    assert [flight.tier for flight in arrived] == [
        int((ticks[flight.client] > bounds).sum()) for flight in arrived
    ]
    assert {flight.tier for flight in arrived} >= {0, 1, 2}


@pytest.mark.parametrize("overrides", [{}, {"clock.on_hours": 0.01, "clock.off_hours": 0.5}])
@pytest.mark.parametrize("method", METHODS)
def test_same_bits_and_times_after_an_interruption(tmp_path, overrides, method):
    options = {**METHODS[method][0], "clock.dropout": 0.2, **overrides}
    task = make_task(SIZES)
    whole = raysim.run(make_settings(tmp_path / "straight", **options), task)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "broken", **options), task, StopAfter(3))
    again = raysim.resume(tmp_path / "broken", task)
    assert model_of(tmp_path / "straight") == model_of(tmp_path / "broken")
    for name in ("virtual_seconds", "virtual_joules", "lost_clients"):
        assert whole.metrics[name].to_pylist() == again.metrics[name].to_pylist()


def test_clients_start_while_they_are_available(tmp_path):
    """Devices are on for 36 seconds at a time, and off for half an hour."""
    options = {**BUFFERED, "clock.on_hours": 0.01, "clock.off_hours": 0.5, "rounds": 20}
    result = raysim.run(make_settings(tmp_path, **options), make_task(SIZES))
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    fleet = Devices(on_hours=0.01, off_hours=0.5).fleet(len(SIZES), 0)
    for row in rows:
        start = round(row["virtual_start"] * TICKS_PER_SECOND)
        assert fleet.available([row["client"]], start)[0]
    assert sum(result.metrics["virtual_seconds"].to_pylist()) > 60


def test_buffered_rounds_that_wait_for_all_have_fedavgs_times(tmp_path):
    equal = {"clock.name": "devices", "clock.spread": 0, "fraction": 0.5, "rounds": 4}
    task = make_task((24,) * 8)
    plain = raysim.run(make_settings(tmp_path / "fedavg", **equal), task)
    buffered = {"method.name": "fedbuff", "method.buffer": 4, **equal}
    found = raysim.run(make_settings(tmp_path / "fedbuff", **buffered), task)
    assert model_of(tmp_path / "fedavg") == model_of(tmp_path / "fedbuff")
    for name in ("virtual_seconds", "virtual_joules", "lost_clients"):
        assert plain.metrics[name].to_pylist() == pytest.approx(found.metrics[name].to_pylist())


@dataclass(frozen=True)
class DroppingOut:
    """A fleet whose clients drop out after a part of their work.

    Attributes:
        share: The part; inf: they do not.
    """

    share: float

    def available(self, clients: Any, tick: int) -> Any:
        return np.ones(len(clients), dtype=bool)

    def dropouts(self, clients: Any, *keys: int) -> Any:
        return np.full(len(clients), self.share)


def test_a_client_that_drops_out_has_worked_until_then():
    ticks, joules = np.array([1000, 2001]), np.array([3.0, 8.0])
    lasting = times_of(DroppingOut(np.inf), ticks, joules)
    assert clocks_of(lasting, 0, 1)[0].fly(1, 50) == (2051, False)
    times = times_of(DroppingOut(0.25), ticks, joules)
    assert clocks_of(times, 0, 1)[0].fly(1, 50) == (551, True)  # a quarter, rounded up
    dropped = (Flight(551, 1, 0, 50, lost=True),)
    arrived = (Flight(1000, 0, 0, 0),)
    planned = PlannedRound(0, 40, (), arrived, dropped, Queue(1, 1000, ()))
    assert times.figures(planned) == {
        "virtual_seconds": 960 / TICKS_PER_SECOND,
        "virtual_joules": pytest.approx(3.0 + 8.0 * 501 / 2001),
        "lost_clients": 1,
    }
