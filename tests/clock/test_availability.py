"""Availability: against slow references that go client by client, period by period."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.clock.availability import DAY, TICKS_PER_SECOND, Renewal
from raysim.clock.devices import Devices
from raysim.clock.draws import uniforms
from raysim.errors import DataError, RunError, SettingsError

HOUR = 3600 * TICKS_PER_SECOND
INSTANTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4 * DAY)), min_size=1, max_size=6)


def periods_of_a_day(renewal: Renewal, client: int, day: int) -> list[tuple[int, int]]:
    """Return the on periods of one client's day, drawn one after the other."""
    draw = lambda *keys: float(uniforms(renewal.seed, *keys)[0])  # noqa: E731
    on = draw("first", client, day) < renewal.on / (renewal.on + renewal.off)
    at, number, found = day * DAY, 0, []
    while at < (day + 1) * DAY:
        mean = renewal.on if on else renewal.off
        length = -np.log(draw("length", client, day, number)) * mean
        end = at + max(int(length), 1)
        if on:
            found.append((at, min(end, (day + 1) * DAY)))
        at, on, number = end, not on, number + 1
    return found


@settings(deadline=None)
@given(INSTANTS, st.integers(0, 99), st.floats(0.2, 30), st.floats(0.2, 30))
def test_a_renewal_process_is_as_drawn_period_by_period(instants, seed, on, off):
    renewal = Renewal(seed, on * HOUR, off * HOUR)
    clients, ticks = (np.array(column) for column in zip(*instants, strict=True))
    found = renewal.available(clients, ticks)
    following = renewal.next_available(clients, ticks)
    for position, (client, tick) in enumerate(instants):
        begin, end = next(p for p in periods(renewal, client, tick // DAY) if p[1] > tick)
        assert found[position] == (begin <= tick < end)
        assert following[position] == max(begin, tick)


@settings(deadline=None)
@given(st.sets(st.integers(0, 9), min_size=1), st.integers(0, 3 * DAY), st.integers(0, 99))
def test_the_first_of_several_clients(clients, tick, seed):
    chosen = np.array(sorted(clients))
    for fleet in (Devices(on_hours=0.5, off_hours=40.0), Devices()):
        found = fleet.fleet(10, seed)
        expected = found.next_available(chosen, tick).min()
        assert found.first_available(chosen, tick) == expected


def test_who_is_never_on_keeps_no_others_waiting():
    renewal = Renewal(0, 0.01 * HOUR, 1e5 * HOUR)
    first = renewal.first_available(np.arange(2000), 0)
    assert first > 0 and renewal.available(np.arange(2000), np.full(2000, first)).sum() == 1
    with pytest.raises(RunError, match="no client is available for 3660 days"):
        Renewal(0, 1.0, 1e6 * HOUR).first_available(np.array([3]), 0)


def periods(renewal: Renewal, client: int, day: int) -> Iterator[tuple[int, int]]:
    """Yield the on periods of a client from a day on."""
    while True:
        yield from periods_of_a_day(renewal, client, day)
        day += 1


def test_clients_are_on_for_their_share_of_the_time_and_as_long_as_asked():
    fleet = Devices(on_hours=2.0, off_hours=6.0).fleet(2000, 0)
    clients = np.arange(2000)
    states = np.array([fleet.available(clients, minute * 60 * 10**6) for minute in range(1440)])
    assert states.mean() == pytest.approx(0.25, abs=0.01)
    starts = (states[1:] & ~states[:-1]).sum()
    assert states.sum() / (starts + states[0].sum()) == pytest.approx(120, rel=0.1)


def test_a_client_that_is_never_on_is_named():
    renewal = Renewal(0, 1.0, 1e6 * HOUR)
    with pytest.raises(RunError, match="client 3 is not available for 3660 days"):
        renewal.next_available(np.array([3]), np.array([0]))


WINDOWS = "client,start,end\n1,10,20\n0,0,5\n0,3,8\n0,86390,86400\n"


def windows(folder: Path, text: str, clients: int = 2) -> Devices:
    path = folder / "windows.csv"
    path.write_text(text)
    return Devices(windows=str(path))


def test_daily_windows_by_hand(tmp_path):
    fleet = windows(tmp_path, WINDOWS).fleet(2, 0)
    second = TICKS_PER_SECOND
    on = [fleet.available([0, 1], t * second).tolist() for t in (0, 7, 8, 10, 19, 20, 86399)]
    assert on == [[1, 0], [1, 0], [0, 0], [0, 1], [0, 1], [0, 0], [1, 0]]
    assert [fleet.first_available([0, 1], t * second) for t in (8, 20)] == [
        10 * second,
        86390 * second,
    ]
    at = [fleet.next_available([0, 1], t * second).tolist() for t in (0, 8, 20, 86400 + 8)]
    expected = [[0, 10], [86390, 10], [86390, 86410], [172790, 86410]]
    assert at == [[t * second for t in row] for row in expected]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 86399), st.integers(1, 40_000)), max_size=5
    ),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3 * 86400)), min_size=1, max_size=5),
)
def test_windows_as_a_search_second_by_second(tmp_path_factory, rows, instants):
    rows = [*rows, (0, 50, 60), (1, 0, 7), (2, 86399, 1)]
    lines = [f"{client},{start},{min(start + length, 86400)}" for client, start, length in rows]
    folder = tmp_path_factory.mktemp("windows")
    fleet = windows(folder, "client,start,end\n" + "\n".join(lines)).fleet(3, 0)
    on = np.zeros((3, 86400), dtype=bool)
    for client, start, length in rows:
        on[client, start : start + length] = True
    for client, second in instants:
        tick = second * TICKS_PER_SECOND
        days = np.tile(on[client], 5)
        assert fleet.available([client], tick)[0] == days[second]
        expected = second + int(np.argmax(days[second:]))
        assert fleet.next_available([client], tick)[0] == expected * TICKS_PER_SECOND


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("client,start,end\n0,0,1\n", "client 1 has no window (1 of 2 have none)"),
        ("client,start,end\n0,0,1\n1,5,5\n", "window 5 to 5 of client 1"),
        ("client,start,end\n0,0,1\n1,5,5.0000001\n", "window 5 to 5.0000001 of client 1"),
        ("client,start,end\n0,0,1\n1,5,\n", "window 5 to nan of client 1"),
        ("client,start,end\n0,0,1\n1,0,18446744073710\n", "window 0 to 1.84467440737e+13 of"),
        ("client,start,end\n0,0,1\n1,5,86401\n", "window 5 to 86401 of client 1"),
        ("client,start,end\n0.7,5,6\n1,0,1\n", "row 1: client is 0.7; must be a whole number"),
        ("client,start,end\n0,0,1\n1,0,1\n-1,0,1\n", "row 3: client is -1; must"),
        ("client,begin,end\n0,0,1\n", "must have the columns client, start, end"),
    ],
)
def test_bad_windows_are_refused_in_one_line(tmp_path, text, expected):
    with pytest.raises(DataError) as caught:
        windows(tmp_path, text).fleet(2, 0)
    assert expected in str(caught.value) and str(caught.value).startswith("clock.windows=")


def test_windows_and_on_hours_exclude_each_other():
    from raysim.config import parse
    from tests.tasks import make_settings

    raw = make_settings(Path("runs/x")).to_dict()
    with pytest.raises(SettingsError, match=r"clock.on_hours=2: must be none with clock.windows"):
        parse({**raw, "clock": {"name": "devices", "on_hours": 2.0, "windows": "w.csv"}})
