"""Dealing clients to workers: every client once, longest first, near the best that is possible."""

from __future__ import annotations

from collections import deque
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.execution.scheduling.dealing import Speeds, assign, steal, take_chunk
from raysim.execution.scheduling.line import HEAD_START, latest_starts

costs_of = st.lists(st.integers(1, 600), min_size=1, max_size=60).map(
    lambda values: {7 * i + 3: float(cost) for i, cost in enumerate(values)}
)
speeds_of = st.lists(st.floats(0.1, 10), min_size=1, max_size=6)


def loads(queues, costs):
    return [sum(costs[item] for item in queue) for queue in queues]


@given(costs_of, speeds_of)
def test_every_item_is_in_exactly_one_queue_longest_first(costs, speeds):
    queues = assign(costs, speeds)
    assert len(queues) == len(speeds)
    assert sorted(item for queue in queues for item in queue) == sorted(costs)
    for queue in queues:
        dealt = [costs[item] for item in queue]
        assert dealt == sorted(dealt, reverse=True)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(1, 3))
def test_makespan_is_within_grahams_bound_of_the_best(values, workers):
    """4/3 - 1/(3m) of the optimum, which is found by trying every assignment."""
    best = min(
        max(sum(v for v, w in zip(values, where, strict=True) if w == k) for k in range(workers))
        for where in product(range(workers), repeat=len(values))
    )
    costs = {i: float(value) for i, value in enumerate(values)}
    found = max(loads(assign(costs, [2.0] * workers), costs))
    assert found <= (4 / 3 - 1 / (3 * workers)) * best + 1e-9


@given(costs_of, st.integers(1, 6))
def test_makespan_is_at_most_an_even_share_and_one_item(costs, workers):
    found = max(loads(assign(costs, [1.0] * workers), costs))
    longest = max(costs.values())
    assert found <= sum(costs.values()) / workers + (1 - 1 / workers) * longest + 1e-9


@given(costs_of, speeds_of)
def test_no_item_would_have_been_done_earlier_elsewhere(costs, speeds):
    queues = assign(costs, speeds)
    finish = [load / speed for load, speed in zip(loads(queues, costs), speeds, strict=True)]
    for queue, end in zip(queues, finish, strict=True):
        for other, speed in zip(finish, speeds, strict=True):
            assert not queue or end <= other + costs[queue[-1]] / speed + 1e-6


def test_faster_workers_get_more():
    queues = assign(dict.fromkeys(range(60), 5.0), [10.0, 20.0, 30.0])
    dealt = zip(queues, (10, 20, 30), strict=True)
    assert all(abs(len(queue) - due) <= 1 for queue, due in dealt)
    assert len(queues[0]) < len(queues[1]) < len(queues[2])


def test_longest_first_by_hand():
    costs = {1: 5.0, 2: 4.0, 3: 3.0, 4: 3.0, 5: 3.0}
    assert [list(queue) for queue in assign(costs, [1.0, 1.0])] == [[1, 4], [2, 3, 5]]


def test_nothing_to_deal():
    assert assign({}, [1.0, 2.0]) == [deque(), deque()]


def chunks_of(queue, costs):
    chunks = []
    while queue:
        chunks.append(take_chunk(queue, costs))
    return chunks


@given(costs_of)
def test_chunks_cover_the_queue_in_order(costs):
    order = sorted(costs, key=lambda item: -costs[item])
    chunks = chunks_of(deque(order), costs)
    assert [item for chunk in chunks for item in chunk] == order
    left = sum(costs.values())
    for chunk in chunks:
        taken = sum(costs[item] for item in chunk)
        assert len(chunk) == 1 or taken <= 0.2 * left + 1e-9
        left -= taken


def test_chunks_shrink_to_single_items():
    """A fifth of what remains, rounded down, but at least one."""
    chunks = chunks_of(deque(range(50)), dict.fromkeys(range(50), 2.0))
    assert [len(chunk) for chunk in chunks] == [10, 8, 6, 5, 4, 3, 2, 2, 2, *[1] * 8]


def test_a_chunk_holds_what_is_worth_a_message():
    queue = deque(range(10))
    assert take_chunk(queue, dict.fromkeys(range(10), 2.0), min_work=7.0) == [0, 1, 2]
    assert take_chunk(queue, dict.fromkeys(range(10), 2.0), min_work=1e9) == [*range(3, 10)]


def test_one_long_item_is_a_chunk_of_its_own():
    queue = deque([0, 1, 2])
    assert take_chunk(queue, {0: 100.0, 1: 1.0, 2: 1.0}) == [0]
    assert list(queue) == [1, 2]


@pytest.mark.parametrize(
    ("queue", "taken"), [([1], [1]), ([1, 2], [2]), ([1, 2, 3], [2, 3]), ([1, 2, 3, 4], [3, 4])]
)
def test_stealing_takes_the_smallest_half(queue, taken):
    richest = deque(queue)
    assert list(steal(richest)) == taken
    assert [*richest, *taken] == queue


def test_speeds_by_hand():
    speeds = Speeds(3)
    assert speeds.estimates() == [1.0, 1.0, 1.0]
    speeds.measure(0, 10.0, 5.0)
    speeds.measure(1, 12.0, 2.0)
    assert speeds.estimates() == [2.0, 6.0, 4.0]
    speeds.measure(0, 11.0, 0.5)
    assert speeds.estimates()[0] == (0.9 * 10 + 11) / (0.9 * 5 + 0.5)


def test_long_items_start_before_they_are_due_by_the_work_that_all_do_meanwhile():
    """Item 2 of 9 is due last of all, and three workers do 27 while one of them does it."""
    found = latest_starts({0: 10.0, 1: 20.0, 2: 40.0}, {0: 1.0, 1: 2.0, 2: 9.0}, workers=3)
    assert found == {0: 10 - HEAD_START * 3, 1: 20 - HEAD_START * 6, 2: 40 - HEAD_START * 27}
    assert HEAD_START >= 2  # workers are up to twice as slow as their mean
