"""Two levels of schedules: every item in one result whoever is lost, and answers to calls."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from raysim.execution.scheduling.backlog import Answer, Backlog
from raysim.execution.scheduling.dealing import Speeds
from raysim.execution.scheduling.holding import AT_ONCE
from raysim.execution.scheduling.schedule import Schedule
from raysim.execution.scheduling.worker_items import Assignment


def groups(*costs):
    """Items of one client each, numbered from 0."""
    return {(client,): float(cost) for client, cost in enumerate(costs)}


class Foreman:
    """A foreman whose workers do what a test chooses.

    Attributes:
        orders: Calls of the driver that are on their way.
        calls: Per worker, its calls in flight.
        collected: Items that workers really handed over.
    """

    def __init__(self, costs, workers, hold):
        self.backlog = Backlog(Speeds(workers), clock=lambda: 0.0)
        self.backlog.answer_seconds = self.backlog.hold_seconds = hold
        self.orders = deque()
        self.calls = [deque() for _ in range(workers)]
        self.collected = []
        self._costs, self._held = costs, [[] for _ in range(workers)]

    def take_orders(self):
        while self.orders:
            assignment, order = self.orders.popleft()
            costs = {item: self._costs[item] for item in assignment.items}
            order = {item: order[item] for item in order.keys() & costs}
            self.backlog.add_call(costs, assignment.hand_over, order=order)
            self._fill(range(len(self.calls)))

    def leave(self):
        self.backlog.leave_node()
        self._fill(range(len(self.calls)))
        for calls, held in zip(self.calls, self._held, strict=True):  # soon
            assert any(call.hand_over for call in calls) == bool(calls or held)

    def come_back(self, worker):
        assignment = self.calls[worker].popleft()
        self._held[worker] += assignment.items
        if assignment.hand_over:
            self.collected += self._held[worker]
            self._held[worker] = []
        self.backlog.returned(worker, 1.0)
        self._fill([worker, *self.backlog.woken()])

    def lose(self, worker, suspicious):
        self.calls[worker].clear()
        self._held[worker] = []
        self.backlog.lost(worker, suspicious)
        self._fill(range(len(self.calls)))

    def answers(self):
        """Return the answers, each with the items that it should have."""
        found = []
        for answer in self.backlog.answers():
            found.append(answer)
            if answer.items:
                assert sorted(answer.items) == sorted(self.collected)
                self.collected = []
        return found

    def _fill(self, workers):
        due = [(worker, self.backlog.next(worker)) for worker in [*workers] * 2]
        for worker, assignment in self.backlog.settled([each for each in due if each[1]]):
            assert not (self.backlog.leaving and assignment.items)
            self.calls[worker].append(assignment)


class Tree:
    """A driver with foremen, as in `ActorPool` and `Foreman`."""

    def __init__(self, costs, sizes, hold):
        self._costs, self._sizes, self._hold = costs, sizes, hold
        speeds = Speeds()
        for size in sizes:
            speeds.join(size)
        self.driver = Schedule({}, speeds, clock=lambda: 0.0)
        self.driver.hold_seconds = hold
        self.foremen = [Foreman(costs, size, hold) for size in sizes]
        self.results, self.added, self._order = Counter(), Counter(), {}

    def add(self, items, order=None):
        self.added.update(items)
        for item in items:
            self._order.pop(item, None)
        self._order |= order or {}
        self.driver.add({item: self._costs[item] for item in items}, order=order)
        self._fill(range(len(self._sizes)))

    def lose(self, number):
        self.driver.lost(number, suspicious=False)
        self.foremen[number] = Foreman(self._costs, self._sizes[number], self._hold)
        self._fill(range(len(self._sizes)))

    def leave(self, number):
        """Have a foreman hand over; return whether it had, and is replaced."""
        if left := self.driver.leave(number):
            self.lose(number)
        else:
            self.foremen[number].leave()
            self._fill([number])
        return left

    def settle(self):
        """Have all orders arrive, and hear all answers."""
        for number in range(len(self._sizes)):
            self._answer(number)
        if any(foreman.orders for foreman in self.foremen):
            self.settle()

    def _answer(self, number):
        self.foremen[number].take_orders()
        while answers := self.foremen[number].answers():
            for answer in answers:
                returned = answer.seconds, answer.items, answer.given_back
                self.driver.returned(number, *returned)
                self.results.update(answer.items)
            self._fill([number, *self.driver.woken()])
            self.foremen[number].take_orders()

    def _fill(self, numbers):
        due = [(number, self.driver.next(number)) for number in [*numbers] * 2]
        for number, assignment in self.driver.settled([each for each in due if each[1]]):
            self.foremen[number].orders.append((assignment, dict(self._order)))


@given(
    st.data(),
    st.lists(st.integers(1, 600), min_size=1, max_size=40),
    st.lists(st.integers(2, 4), min_size=1, max_size=3),
)
def test_every_item_is_in_one_result_for_any_tree_whoever_is_lost(data, costs, sizes):
    items = groups(*costs)
    tree = Tree(items, sizes, hold=data.draw(st.sampled_from([0.5, 2.0, 1e9, AT_ONCE])))
    waiting, again = [*items], data.draw(st.integers(0, 12))
    kinds = st.sampled_from(["", "worker", "foreman", "drained"])
    losses, leaving = iter(data.draw(st.lists(kinds, max_size=15))), set[int]()
    for _ in range(2000):
        # It overtakes orders, which a foreman has threads for.
        leaving = {number for number in leaving if not tree.leave(number)}
        tree.settle()
        if waiting and (tree.driver.finished or data.draw(st.booleans())):
            count = data.draw(st.integers(1, len(waiting)))
            portion, waiting = waiting[:count], waiting[count:]
            order = {item: data.draw(st.integers(0, 3)) for item in portion}
            tree.add(portion, order if data.draw(st.booleans()) else None)
            if next(losses, "") == "drained":
                leaving.add(data.draw(st.integers(0, len(sizes) - 1)))
            continue
        done = [item for item, times in tree.results.items() if times == tree.added[item]]
        if again and done and data.draw(st.booleans()):  # clients that are drawn once more
            again -= 1
            portion = data.draw(st.lists(st.sampled_from(done), min_size=1, unique=True))
            tree.add(portion, dict.fromkeys(portion, 0) if data.draw(st.booleans()) else None)
            continue
        if tree.driver.finished:
            break
        working = [
            (number, worker)
            for number, foreman in enumerate(tree.foremen)
            for worker, calls in enumerate(foreman.calls)
            if calls
        ]
        if not working:
            continue  # all was given back, and who leaves is replaced in short
        number, worker = working[data.draw(st.integers(0, len(working) - 1))]
        loss = next(losses, "")
        if loss == "foreman":
            leaving.discard(number)
            tree.lose(number)
        elif loss == "drained":
            leaving.add(number)
        elif loss:
            tree.foremen[number].lose(worker, suspicious=data.draw(st.booleans()))
        else:
            tree.foremen[number].come_back(worker)
    assert tree.driver.finished
    assert tree.results == tree.added and tree.added.keys() == items.keys()
    assert 0 < tree.driver.done <= tree.added.total()
    assert not any(foreman.collected for foreman in tree.foremen)


def test_an_item_may_come_anew_once_it_is_handed_over_before_its_call_returns():
    speeds = Speeds()
    speeds.join(2)
    speeds.join(2)
    schedule = Schedule({}, speeds, clock=lambda: 0.0)
    schedule.hold_seconds = AT_ONCE
    schedule.add(groups(*[1] * 8), order={(client,): client for client in range(8)})
    assert [schedule.next(0).items for _ in range(2)] == [[(0,)], [(1,)]]
    schedule.returned(0, 1.0, [(0,), (1,)])
    assert schedule.done == 2
    schedule.add({(1,): 1.0}, order={(1,): 0})
    assert schedule.next(1).items == [(1,)]
    schedule.returned(0, 1.0, [])  # the call that had it at first
    assert speeds.estimates()[0] == 1.0  # of two calls with an item each
    assert schedule.done == 2
    schedule.returned(1, 1.0, [(1,)])
    assert schedule.done == 3
    assert schedule.lost(0) == Assignment([], hand_over=False)


def test_what_a_foreman_gives_back_is_for_the_others():
    speeds = Speeds()
    speeds.join(2)
    speeds.join(2)
    schedule = Schedule(groups(*[1] * 12), speeds, clock=lambda: 0.0)
    first, second = [schedule.next(0).items for _ in range(2)]
    assert not schedule.leave(0)
    schedule.returned(0, 1.0, [], [first[1], *second])
    assert schedule.done == len(first) - 1
    other = []
    while (assignment := schedule.next(1)) and assignment.items:
        other += assignment.items
        schedule.returned(1, 1.0, ())
    assert assignment == Assignment([], hand_over=True)
    assert sorted([first[0], *other]) == [*groups(*[1] * 12)]
    schedule.returned(0, 1.0, [first[0]])  # of the second call nothing is left
    assert schedule.leave(0) and not schedule.finished
    schedule.returned(1, 1.0, other)
    assert schedule.finished and schedule.done == 12


def test_a_call_is_answered_when_its_items_are_with_workers():
    backlog = Backlog(Speeds(2), clock=lambda: 0.0)
    assert backlog.add_call(groups(4, 3, 2, 1), hand_over=False) == 1
    assert [backlog.next(worker).items for worker in (0, 1)] == [[(0,)], [(1,)]]
    assert backlog.answers() == []
    backlog.returned(0, 2.0)
    backlog.returned(1, 3.0)
    assert [backlog.next(worker).items for worker in (0, 1)] == [[(2,)], [(3,)]]
    assert backlog.answers() == [Answer(1, seconds=10 / (4 / 2 + 3 / 3), items=[])]
    assert backlog.answers() == []


def test_a_call_for_the_sum_is_answered_when_all_have_handed_over():
    backlog = Backlog(Speeds(2), clock=lambda: 0.0)
    backlog.add_call(groups(4, 3), hand_over=False)
    assert [backlog.next(worker) for worker in (0, 1)] == [
        Assignment([(0,)], hand_over=False),
        Assignment([(1,)], hand_over=False),
    ]
    assert [answer.items for answer in backlog.answers()] == [[]]
    backlog.returned(0, 1.0)
    assert backlog.next(0) is None  # the driver may send more
    backlog.add_call({}, hand_over=True)
    assert backlog.answers() == [] and backlog.woken() == [0]
    assert backlog.next(0) == Assignment([], hand_over=True)
    backlog.returned(0, 0.0)
    backlog.returned(1, 1.0)
    assert backlog.answers() == [] and backlog.next(1) == Assignment([], hand_over=True)
    backlog.returned(1, 0.0)
    assert [answer.items for answer in backlog.answers()] == [[(0,), (1,)]]


def test_a_call_for_the_sum_waits_for_what_had_come_by_then():
    backlog = Backlog(Speeds(2), clock=lambda: 0.0)
    backlog.hold_seconds = AT_ONCE
    backlog.add_call(groups(4), hand_over=False)
    assert backlog.next(0).items == [(0,)] and len(backlog.answers()) == 1
    backlog.add_call({(1,): 1.0}, hand_over=True)
    assert backlog.next(1).items == [(1,)]
    backlog.add_call({(2,): 1.0}, hand_over=True)
    assert backlog.returned(1, 1.0) == [(1,)] and backlog.answers() == []
    assert backlog.next(1).items == [(2,)]
    backlog.returned(0, 4.0)
    assert [sorted(answer.items) for answer in backlog.answers()] == [[(0,), (1,)]]
    backlog.returned(1, 1.0)
    assert [answer.items for answer in backlog.answers()] == [[(2,)]]


def test_where_sums_are_not_held_a_call_for_them_gets_those_that_are_there():
    backlog = Backlog(Speeds(2), clock=lambda: 0.0)
    backlog.answer_seconds = backlog.hold_seconds = AT_ONCE
    backlog.add_call(groups(4, 1), hand_over=False, order={(0,): 0, (1,): 0})
    assert [backlog.next(worker).items for worker in (0, 1)] == [[(0,)], [(1,)]]
    assert [answer.items for answer in backlog.answers()] == [[]]
    backlog.add_call({}, hand_over=True)
    assert backlog.answers() == []
    backlog.returned(1, 1.0)
    assert [answer.items for answer in backlog.answers()] == [[(1,)]]
    backlog.add_call({}, hand_over=True)
    backlog.returned(0, 4.0)
    assert [answer.items for answer in backlog.answers()] == [[(0,)]]


def test_on_a_node_that_is_left_calls_get_what_there_is():
    backlog = Backlog(Speeds(2), clock=lambda: 0.0)
    backlog.hold_seconds = AT_ONCE
    backlog.add_call(groups(4, 3, 2), hand_over=False)
    assert [backlog.next(worker).items for worker in (0, 1)] == [[(0,)], [(1,)]]
    backlog.returned(0, 4.0)
    backlog.add_call({}, hand_over=True)  # from now on it would wait for all
    assert backlog.answers() == []
    backlog.leave_node()
    answers = [(answer.items, answer.given_back) for answer in backlog.answers()]
    assert answers == [([(0,)], [(2,)])]  # the other call waits for the sum of what is at work
    assert backlog.next(0) is None and backlog.answers() == []
    assert backlog.next(1) is None  # it hands over as it ends
    backlog.returned(1, 9.0)
    assert [answer.items for answer in backlog.answers()] == [[(1,)]]


def test_what_a_foreman_held_long_comes_with_the_next_answer():
    backlog = Backlog(Speeds(2), clock=lambda: 0.0)
    backlog.hold_seconds, backlog.answer_seconds = 0.0, 3.0
    backlog.add_call(groups(*[1] * 9), hand_over=False)
    for _ in range(2):  # the second call hands over what is held longer than 0 seconds
        backlog.next(0)
        backlog.returned(0, 4.0)
    backlog.add_call({(9,): 1.0}, hand_over=False)
    while backlog.queued:
        assert backlog.answers() == []
        backlog.next(1)
        backlog.returned(1, 0.1)
    first, _ = backlog.answers()
    assert (0,) in first.items
