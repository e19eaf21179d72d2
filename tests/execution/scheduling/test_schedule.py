"""The schedule of a pass: every item in one sum, whoever is lost, and what workers are handed."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.execution.scheduling.dealing import Speeds
from raysim.execution.scheduling.holding import AT_ONCE
from raysim.execution.scheduling.schedule import Assignment, Schedule


def groups(*costs):
    """Items of one client each, numbered from 0."""
    return {(client,): float(cost) for client, cost in enumerate(costs)}


def drain(schedule, workers, choose, lose=lambda worker: False, seconds=0.1, barred=None):
    """Play a schedule to its end; return per sum handed over its clients.

    Args:
        schedule: The schedule.
        workers: Their number.
        choose: Picks whose oldest call returns next, or is lost, among the workers with any.
        lose: Whether that call is lost with its worker.
        seconds: What every call takes.
        barred: Items that a worker must not have before it was lost.
    """
    barred = dict(barred or {})
    calls, held, sums = [deque() for _ in range(workers)], [[] for _ in range(workers)], []

    def fill(numbers):
        due = [(worker, schedule.next(worker)) for worker in [*numbers] * 2]
        for worker, assignment in schedule.settled([each for each in due if each[1]]):
            assert all(barred.get(item) != worker for item in assignment.items)
            calls[worker].append(assignment)
        assert all(len(each) <= 2 for each in calls)

    fill(range(workers))
    while not schedule.finished:
        worker = choose([number for number, each in enumerate(calls) if each])
        if lose(worker):
            assert schedule.lost(worker) == calls[worker][0]
            calls[worker].clear()
            held[worker] = []
            for item in [item for item, at in barred.items() if at == worker]:
                del barred[item]
            fill(range(workers))
            continue
        assignment = calls[worker].popleft()
        held[worker] += assignment.items
        assert schedule.returned(worker, seconds) == (held[worker] if assignment.hand_over else ())
        if assignment.hand_over:
            sums.append(held[worker])
            held[worker] = []
        fill([worker, *schedule.woken()])
    assert not any(calls) and not any(held)
    return sums


@given(st.data(), st.lists(st.integers(1, 600), min_size=1, max_size=40), st.integers(1, 5))
def test_every_item_is_handed_over_once_whoever_is_lost(data, costs, workers):
    items = groups(*costs)
    worker = st.integers(0, workers - 1)
    some = st.dictionaries(st.sampled_from([*items]), worker) if workers > 1 else st.just({})
    barred = data.draw(some)
    schedule = Schedule(items, Speeds(workers), barred)
    losses = iter(data.draw(st.lists(st.booleans(), max_size=12)))
    sums = drain(
        schedule,
        workers,
        choose=lambda able: able[data.draw(st.integers(0, len(able) - 1))],
        lose=lambda worker: next(losses, False),
        seconds=data.draw(st.sampled_from([0.1, 4.0])),
        barred=barred,
    )
    assert sorted(item for each in sums for item in each) == sorted(items)
    assert schedule.done == len(items)


def test_a_worker_hands_over_one_sum_a_round():
    sums = drain(Schedule(groups(*[5.0] * 100), Speeds(4)), 4, choose=lambda able: able[-1])
    assert len(sums) == 4


def test_workers_hand_over_with_their_last_call_where_nothing_is_left_for_them():
    """Four items that are two chunks: a call for the sum alone would be one message more."""
    speeds = Speeds(2)
    for worker in (0, 1):
        speeds.measure(worker, 1.0, 1.0)
    schedule = Schedule(groups(*[0.04] * 4), speeds, clock=lambda: 0.0)
    due = [(worker, schedule.next(worker)) for worker in (0, 1)]
    assert [each.hand_over for _, each in due] == [False, True]
    sent = schedule.settled(due)
    assert sent == [(worker, Assignment(each.items, True)) for worker, each in due]
    assert schedule.returned(0, 0.1) == sent[0][1].items and not schedule.finished
    assert schedule.next(0) is None
    assert schedule.returned(1, 0.1) == sent[1][1].items and schedule.finished


def test_a_schedule_by_hand():
    """Two workers, five items: dealt 0, 3 and 1, 2, 4; see `test_longest_first_by_hand`."""
    schedule = Schedule(groups(5, 4, 3, 3, 3), Speeds(2), clock=lambda: 0.0)
    assert schedule.next(0) == Assignment([(0,)], hand_over=False)
    assert schedule.next(1) == Assignment([(1,)], hand_over=False)
    assert schedule.next(0) is None  # its last item is for whoever has it done first
    assert schedule.next(1) == Assignment([(2,)], hand_over=False)
    assert schedule.next(1) is None  # two are in flight
    assert schedule.returned(1, 4.0) == ()
    assert schedule.next(1) is None
    schedule.returned(1, 3.0)
    assert schedule.done == 2 and schedule.woken() == []
    assert schedule.next(1) == Assignment([(3,)], hand_over=False)  # taken from the other
    schedule.returned(1, 3.0)
    assert schedule.next(1) == Assignment([(4,)], hand_over=True)  # nothing is left
    schedule.returned(0, 5.0)
    assert schedule.next(0) == Assignment([], hand_over=True)
    assert schedule.returned(0, 0.0) == [(0,)]
    assert not schedule.finished
    assert schedule.returned(1, 3.0) == [(1,), (2,), (3,), (4,)]
    assert schedule.finished and schedule.done == 5


def test_the_last_items_are_for_those_who_have_them_done_first():
    """Of speeds 4 and 1, the fast one ends two items of 4 before the slow one its first."""
    speeds, now = Speeds(2), 0.0
    for worker, speed in enumerate((4.0, 1.0)):
        speeds.measure(worker, speed, 1.0)
    schedule = Schedule(groups(8, 4, 4, 2), speeds, clock=lambda: now)
    assert schedule.next(0).items == [(0,)]
    assert schedule.next(1).items == [(3,)]  # dealt 0, 1, 2 and 3
    now = 2.0  # the fast one has both done after two seconds more, the slow one its first at four
    schedule.returned(1, 2.0)
    assert schedule.next(1) is None
    assert schedule.woken() == []
    now = 5.0
    schedule.lost(0)
    assert schedule.woken() == [1]  # nobody else is there
    assert schedule.next(1).items == [(0,)]


def test_an_idle_worker_is_woken_for_what_another_was_expected_to_do():
    speeds = Speeds(3)
    for worker, speed in enumerate((4.0, 3.0, 1.0)):
        speeds.measure(worker, speed, 1.0)
    schedule = Schedule(groups(8, 6, 3.9, 3.9, 1), speeds, clock=lambda: 0.0)
    assert [schedule.next(worker).items for worker in range(3)] == [[(0,)], [(1,)], [(4,)]]
    schedule.returned(2, 1.0)
    assert schedule.next(2) is None  # 3.9 seconds, where the others need at most 3.3
    schedule.lost(0, suspicious=False)
    schedule.returned(1, 2.0)
    assert schedule.woken() == [2] and schedule.next(2) is not None


@pytest.mark.parametrize(
    ("known", "first", "second"), [(False, 2, 1), (True, 8, 2)], ids=["unknown", "known"]
)
def test_a_chunk_is_worth_its_message_once_speeds_are_known(known, first, second):
    """Ten items of 10 ms each: a fifth of those left, but 0.08 s, 8 items, if that is known."""
    speeds = Speeds(2)
    for worker in range(2 if known else 0):
        speeds.measure(worker, 500.0, 5.0)
    schedule = Schedule(groups(*[1.0] * 20), speeds)
    assert [len(schedule.next(0).items) for _ in range(2)] == [first, second]


def test_an_idle_worker_takes_from_the_one_that_would_be_busy_longest():
    """Left of the first are 2 x 16 at 8 a second, or 4 s; of the second 5 x 1 at 1, or 5 s."""
    speeds = Speeds(3)
    for worker, speed in enumerate((8.0, 1.0, 1e-9)):
        speeds.measure(worker, speed, 1.0)
    schedule = Schedule(groups(*[16.0] * 3, *[1.0] * 6), speeds)
    assert schedule.next(0) == Assignment([(0,)], hand_over=False)
    assert schedule.next(1) == Assignment([(3,)], hand_over=False)
    assert schedule.next(2) == Assignment([(6,)], hand_over=False)


def test_what_a_worker_held_too_long_is_handed_over():
    schedule = Schedule(groups(*[1.0] * 10), Speeds(1))
    first, second = schedule.next(0), schedule.next(0)
    assert not first.hand_over and not second.hand_over
    schedule.returned(0, 11.0)
    assert schedule.next(0).hand_over


def test_a_suspect_is_tried_alone_and_counted():
    schedule = Schedule(groups(*[1.0] * 20), Speeds(1))
    first, second = schedule.next(0), schedule.next(0)
    assert first.items == [(0,), (1,), (2,), (3,)] and len(second.items) == 3
    assert schedule.lost(0) == first
    assert schedule.next(0) == Assignment([(0,)], False)
    assert schedule.next(0) is None
    schedule.lost(0)
    assert schedule.deaths == {(0,): 2, (1,): 1, (2,): 1, (3,): 1}
    for client in range(4):
        assert schedule.next(0).items == [(client,)]
        schedule.returned(0, 1.0)
    assert schedule.done == 4 and len(schedule.next(0).items) > 1


def test_a_suspect_is_tried_at_another_worker():
    schedule = Schedule(groups(*[1.0] * 4), Speeds(2))
    assert schedule.next(0).items == [(0,)] and schedule.next(1).items == [(1,)]
    schedule.lost(0)
    schedule.returned(1, 1.0)
    assert schedule.next(1).items == [(0,)]


def test_a_lost_worker_without_calls_costs_nothing():
    schedule = Schedule(groups(1), Speeds(1))
    assert schedule.lost(0, suspicious=False) == Assignment([], hand_over=False)
    assert schedule.next(0) == Assignment([(0,)], hand_over=True)


def test_a_foreman_that_leaves_is_asked_until_it_has_handed_over_all():
    speeds = Speeds()
    speeds.join(2)
    speeds.join(2)
    schedule = Schedule(groups(*[1] * 40), speeds)
    first, second = schedule.next(0), schedule.next(0)
    items = [*first.items, *second.items]
    assert not schedule.leave(0) and schedule.next(0) == ([], True)
    schedule.returned(0, 1.0, items[:1])  # its calls are answered at once
    schedule.returned(0, 1.0, [])
    assert schedule.next(0) is None
    schedule.returned(0, 1.0, items[1:2])
    assert not schedule.leave(0) and schedule.next(0) == ([], True) and not schedule.next(0)
    schedule.returned(0, 1.0, items[2:])
    assert schedule.leave(0) and not schedule.next(0)


def test_a_worker_that_leaves_hands_over_first_and_gets_no_more():
    schedule = Schedule(groups(*[1] * 40), Speeds(2))
    first = schedule.next(0)
    assert first and not first.hand_over and schedule.next(1)
    assert not schedule.leave(0)
    assert schedule.next(0) == ([], True) and schedule.next(0) is None  # asked once, and at once
    assert schedule.returned(0, 1.0) == () and not schedule.leave(0)
    assert schedule.returned(0, 0.0) == first.items
    assert schedule.leave(0) and schedule.next(0) is None
    assert schedule.lost(0, suspicious=False) == ([], False)
    schedule.returned(1, 1.0)
    while not schedule.finished:
        assert schedule.next(1)
        schedule.returned(1, 1.0)
    assert schedule.done == 40


def test_what_is_barred_from_a_worker_waits_for_another():
    schedule = Schedule(groups(4, 3, 2, 1), Speeds(2), {(0,): 0, (1,): 0, (2,): 0})
    assert schedule.next(0).items == [(3,)] and schedule.next(0) is None
    schedule.returned(0, 1.0)
    assert schedule.next(0) == Assignment([], hand_over=True)
    schedule.returned(0, 0.0)
    assert schedule.next(0) is None
    schedule.lost(0, suspicious=False)  # renewed
    assert schedule.next(0).items == [(1,)]


def test_what_a_lost_worker_held_counts_as_not_done():
    schedule = Schedule({(3, 4): 5.0, (5,): 2.0}, Speeds(1))
    schedule.next(0), schedule.next(0)
    schedule.returned(0, 1.0)
    assert schedule.done == 2
    schedule.lost(0)
    assert schedule.done == 0 and not schedule.finished


def test_a_foreman_is_asked_for_its_sum_at_the_end_alone():
    """It hands over by itself what it has held long: to be asked is to collect from all workers."""
    speeds = Speeds()
    speeds.join(4)
    schedule = Schedule(groups(*[1.0] * 12), speeds)
    schedule.hold_seconds = 0.0
    hand_overs = []
    while not schedule.finished:
        assignment = schedule.next(0)
        hand_overs.append(assignment.hand_over)
        schedule.returned(0, 5.0, range(0) if not assignment.hand_over else [*groups(*[0] * 12)])
    assert hand_overs == [False, False, True]


def line_of(schedule, places, work=1.0):
    """Add items at places, numbered from 0."""
    schedule.add(groups(*[work] * len(places)), order={(n,): p for n, p in enumerate(places)})


def test_a_line_is_handed_out_by_place_to_whoever_has_room():
    schedule = Schedule({}, Speeds(2), clock=lambda: 0.0)
    schedule.hold_seconds = AT_ONCE
    line_of(schedule, [5, 5, 3, 7, 3, 9], work=0.1)
    assert [schedule.next(0).items for _ in range(2)] == [[(2,)], [(4,)]]
    assert schedule.next(0) is None  # two are in flight
    assert schedule.next(1) == Assignment([(0,)], hand_over=True)
    schedule.add({(6,): 0.1}, order={(6,): 4})
    assert schedule.returned(0, 0.1) == [(2,)]
    assert schedule.next(0).items == [(6,)]
    assert schedule.next(1).items == [(1,)]
    assert schedule.returned(1, 0.1) == [(0,)]
    assert schedule.next(1) is None  # the last two are for those who have nothing to do
    assert schedule.returned(1, 0.1) == [(1,)] and schedule.next(1).items == [(3,)]
    assert not schedule.finished and schedule.done == 3


def test_a_chunk_off_the_line_is_worth_its_message_but_a_share_at_most():
    """Of items of 10 ms, 16 make 0.16 s; of eighteen left, nine are one worker's share."""
    speeds = Speeds(2)
    for worker in range(2):
        speeds.measure(worker, 500.0, 5.0)
    schedule = Schedule({}, speeds)
    line_of(schedule, [0] * 50)
    assert [len(schedule.next(worker).items) for worker in (0, 0, 1)] == [16, 16, 9]


def test_who_is_at_work_for_long_takes_no_more_off_the_line():
    """With a second of work it would keep the next item from others that are free before."""
    schedule = Schedule({}, Speeds(1), clock=lambda: 0.0)
    line_of(schedule, [0] * 9)
    assert schedule.next(0).items == [(0,)] and schedule.next(0) is None
    schedule.returned(0, 1.0)
    assert schedule.next(0).items == [(1,)]


def test_a_foreman_takes_an_item_for_a_quarter_of_its_workers_off_the_line():
    speeds = Speeds()
    for width in (16, 2):
        speeds.join(width)
    schedule = Schedule({}, speeds)
    line_of(schedule, range(40))
    assert [len(schedule.next(foreman).items) for foreman in (0, 0, 1)] == [4, 4, 1]


def test_what_failed_is_not_lined_up_but_dealt_to_another():
    schedule = Schedule({}, Speeds(2), clock=lambda: 0.0)
    schedule.add(groups(1, 1), {(0,): 0, (1,): 0})
    schedule.add({(2,): 1.0, (3,): 1.0}, order={(2,): 0, (3,): 0})
    assert schedule.next(0).items == [(2,)]
    assert schedule.next(1).items == [(0,)]


def test_a_call_s_return_costs_no_look_at_all_that_its_worker_holds():
    """A foreman may hold ten thousands of items; a call has a few."""

    class Held(dict):
        def __iter__(self):
            raise AssertionError("all are looked at")

        def keys(self):
            raise AssertionError("all are looked at")

    schedule = Schedule(groups(*[1.0] * 20), Speeds(1))
    assignment = schedule.next(0)
    worker = schedule._queues.workers[0]
    worker.held = Held(worker.held)
    assert assignment.items and schedule.returned(0, 1.0) == ()
    assert schedule.done == len(assignment.items)


@given(st.data(), st.integers(1, 4))
def test_every_item_is_handed_over_once_as_more_come(data, workers):
    """Items come in any portions at any moments with any places, and workers are lost."""
    schedule = Schedule({}, Speeds(workers))
    schedule.hold_seconds = AT_ONCE
    portions = data.draw(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=9), max_size=6))
    losses = iter(data.draw(st.lists(st.booleans(), max_size=9)))
    expected, sums = 0, []

    def choose(able):
        nonlocal expected
        if portions and (not able or data.draw(st.booleans())):
            places = portions.pop()
            items = [(expected + number,) for number in range(len(places))]
            schedule.add(dict.fromkeys(items, 2.0), order=dict(zip(items, places, strict=True)))
            expected += len(items)
        return able[data.draw(st.integers(0, len(able) - 1))] if able else 0

    while portions:
        choose([])
        lose = lambda worker: next(losses, False)  # noqa: E731
        sums += drain(schedule, workers, choose, lose)
    assert sorted(item for each in sums for item in each) == [(n,) for n in range(expected)]
    assert not schedule.deaths
