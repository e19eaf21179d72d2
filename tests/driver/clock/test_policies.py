"""Policies, against a reference that goes from client to client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raysim.clock.devices import Devices
from raysim.clock.fleet import Fleet
from raysim.clock.profiles import ProfileSource
from raysim.driver.clock.costs import PassCosts
from raysim.driver.clock.policies import (
    Outcome,
    affordable_epochs,
    outcome_of,
    sent_in_vain,
)
from raysim.errors import SettingsError

SECOND = 10**6


def fleet_of(speeds: list[float]) -> Fleet:
    """Return devices of these speeds with a network that costs nothing."""
    columns = {"speed": np.array(speeds), "latency": np.zeros(len(speeds))}
    return Fleet(ProfileSource(0, "phones", 1.0, columns))


def costs_of(epochs: list[int], epoch: list[float]) -> PassCosts:
    n = len(epochs)
    nothing = np.zeros(n, dtype=np.int64)
    flops = np.array(epoch, dtype=float)
    return PassCosts(np.arange(n), np.array(epochs), flops, np.ones(n), nothing, nothing)


CLIENT = st.tuples(
    st.sampled_from([1.0, 2.0, 4.0]),  # speed
    st.integers(1, 4),  # epochs
    st.integers(1, 9),  # FLOPs of an epoch
    st.sampled_from([0, 0, 3 * SECOND]),  # start
    st.sampled_from([np.inf, np.inf, 0.5]),  # drops out
    st.booleans(),  # extra
)


def outcome(clients: list[Any], begin: int = 0, **clock: Any) -> Outcome:
    speed, epochs, epoch, start, drops, extra = (list(c) for c in zip(*clients, strict=True))
    wanted = max(sum(not each for each in extra), 1)
    return outcome_of(
        Devices(**clock).server_policy,
        fleet_of(speed),
        costs_of(epochs, epoch),
        begin=begin,
        starts=begin + np.array(start),
        dropouts=np.array(drops),
        extra=np.array(extra),
        wanted=wanted if clock.get("policy") == "over_selection" else len(clients),
    )


@pytest.mark.parametrize("trips", [1, 4])
def test_bytes_of_who_works_in_vain_by_hand(trips):
    """2 s of latency, 40 B down at 10 B/s, 3 steps of 1 s, 20 B up at 5 B/s, and 2 s again.

    Four trips of a quarter of the latency take as long.
    """
    ticks = np.array([0, 2, 3, 6, 8, 9, 11, 13, 14, 15]) * SECOND
    n = len(ticks)
    columns = {"speed": 1.0, "down": 10.0, "up": 5.0, "latency": 4.0 / trips}
    fleet = Fleet(ProfileSource(0, "phones", 1.0, {k: np.full(n, v) for k, v in columns.items()}))
    numbers, ones = np.arange(n), np.ones(n, dtype=np.int64)
    costs = PassCosts(numbers, 3 * ones, np.ones(n), np.zeros(n), 20 * ones, 40 * ones, trips)
    counts = np.zeros(n, dtype=bool)
    found = []
    for client in range(n):
        kept = counts | (numbers != client)
        outcome = Outcome(0, kept, costs.epochs, np.zeros(n), ticks, np.ones(n))
        found.append(sent_in_vain(fleet, costs, outcome))
    assert [down for _, down in found] == [0, 0, 10, 40, 40, 40, 40, 40, 40, 40]
    assert [up for up, _ in found] == [0, 0, 0, 0, 0, 0, 10, 20, 20, 20]
    everyone = Outcome(0, counts, costs.epochs, np.zeros(n), ticks, np.ones(n))
    assert sent_in_vain(fleet, costs, everyone) == (70, 290)


@settings(deadline=None)
@given(
    st.lists(CLIENT, min_size=1, max_size=6),
    st.sampled_from(["wait", "deadline", "partial", "over_selection"]),
    st.integers(1, 30),
    st.sampled_from([0, 7 * SECOND]),
)
def test_a_policy_as_played_client_by_client(clients, policy, seconds, begin):
    clock: dict[str, Any] = {"policy": policy}
    if policy in ("deadline", "partial"):
        clock["deadline"] = float(seconds)
    if policy == "over_selection":
        clock["extra"] = 1
    found = outcome(clients, begin, **clock)
    limit = begin + seconds * SECOND if "deadline" in clock else 10**18
    ends, arrivals = [], []
    for number, (speed, epochs, epoch, start, drops, extra) in enumerate(clients):
        begins, done = begin + start, epochs
        if policy == "partial":
            fits = [
                e
                for e in range(epochs + 1)
                if begins + int(np.ceil((1 + e * epoch) / speed * SECOND)) <= limit
            ]
            done = max([*fits, 1])  # who cannot end one epoch has begun it
        assert found.epochs[number] == done
        whole = int(np.ceil((1 + done * epoch) / speed * SECOND))
        if drops < 1:
            ends.append(begins + int(np.ceil(whole * drops)))
            continue
        ends.append(begins + whole)
        if begins + whole <= limit:
            arrivals.append((begins + whole, extra, number))
    end = min(max(ends), limit)
    if policy == "over_selection":
        wanted = max(sum(not client[5] for client in clients), 1)
        if len(arrivals) >= wanted:
            arrivals = sorted(arrivals)[:wanted]
            end = max(arrival for arrival, _, _ in arrivals)
    assert found.end == end
    assert np.flatnonzero(found.counts).tolist() == sorted(number for _, _, number in arrivals)
    for number, client in enumerate(clients):
        worked = max(min(ends[number], end) - begin - client[3], 0)
        assert found.ticks[number] == worked
        assert 0 <= found.share[number] <= 1


def test_who_arrives_at_the_deadline_counts():
    found = outcome([(1.0, 1, 2, 0, np.inf, False)] * 2, policy="deadline", deadline=3.0)
    assert found.counts.all() and found.end == 3 * SECOND
    found = outcome([(1.0, 1, 3, 0, np.inf, False)] * 2, policy="deadline", deadline=3.999999)
    assert not found.counts.any() and found.end == 3_999_999


def test_who_cannot_end_one_epoch_is_late_and_works_until_the_deadline():
    clients = [(1.0, 1, 1, 0, np.inf, False), (1.0, 3, 99, 0, np.inf, False)]
    found = outcome(clients, policy="partial", deadline=10.0)
    assert found.end == 10 * SECOND and found.counts.tolist() == [True, False]
    assert found.ticks.tolist() == [2 * SECOND, 10 * SECOND]
    assert found.share.tolist() == [1.0, 0.1]  # of the 100 s of one epoch


def test_a_client_whose_epoch_takes_forever_is_refused_in_one_line():
    costs = replace(costs_of([1], [1.0]), finish=np.zeros(1))
    with pytest.raises(SettingsError, match="clock: client 0 would need inf seconds"):
        affordable_epochs(fleet_of([1e-320]), costs, np.array([10 * SECOND]))


def test_the_first_drawn_come_first_at_the_same_tick():
    same = [(1.0, 1, 1, 0, np.inf, extra) for extra in (True, False, True, False)]
    found = outcome(same, policy="over_selection", extra=2)
    assert found.counts.tolist() == [False, True, False, True]


def test_the_round_ends_when_m_have_arrived_though_an_extra_client_is_still_to_drop_out():
    clients = [(1.0, 1, 9, 0, np.inf, False), (1.0, 1, 19, 0, np.inf, False)]
    found = outcome([*clients, (1.0, 1, 199, 0, 0.5, True)], policy="over_selection", extra=1)
    assert found.end == 20 * SECOND and found.counts.tolist() == [True, True, False]
    assert found.ticks.tolist() == [10 * SECOND, 20 * SECOND, 20 * SECOND]


@example(5, 3.0, 1.0, 666_667)  # one more than the quotient of whole ticks
@given(st.integers(1, 50), st.floats(0.1, 10), st.floats(0.1, 50), st.integers(0, 10**8))
def test_as_many_epochs_as_fit(epochs, speed, epoch, budget):
    fleet, costs = fleet_of([speed]), costs_of([epochs], [epoch])
    ticks = [int(np.ceil((1 + e * epoch) / speed * SECOND)) for e in range(epochs + 1)]
    expected = max((e for e, t in enumerate(ticks) if t <= budget), default=0)
    assert affordable_epochs(fleet, costs, np.array([budget])).tolist() == [expected]
