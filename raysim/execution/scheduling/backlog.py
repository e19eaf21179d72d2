"""Backlog of a foreman: the driver's unanswered calls, and their items' schedule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from time import perf_counter

from raysim.execution.scheduling.dealing import Speeds
from raysim.execution.scheduling.holding import AT_ONCE, HOLD_SECONDS
from raysim.execution.scheduling.schedule import Schedule
from raysim.execution.scheduling.worker_items import Assignment, Item


@dataclass(frozen=True)
class Answer:
    """Answer to a call of the driver.

    Attributes:
        call: The call's number.
        seconds: Seconds of its items on all workers of the foreman together; 0 is unknown.
        items: Items with results in the answer: all that the foreman holds, or none.
        given_back: Items for other foremen, which no worker of a leaving foreman was handed.
    """

    call: int
    seconds: float
    items: list[Item]
    given_back: list[Item] = field(default_factory=list)


@dataclass(frozen=True)
class _Call:
    """Unanswered call.

    Attributes:
        number: Number of the call.
        work: Work of its items.
        waiting: Items that no worker has been handed; if it collects, all earlier items that have
            not been handed over.
        hand_over: Whether it asks for the sum.
        collects: Whether it asks for the sum of all items.
    """

    number: int
    work: float
    waiting: set[Item]
    hand_over: bool
    collects: bool


class Backlog(Schedule):
    """Unanswered calls of the driver to a foreman, and the schedule of their items.

    A call is answered when workers have been handed all of its items: then the driver sends more,
    and no worker waits for the slowest item of a chunk. A call that asks for the sum is answered
    when workers have handed over all earlier items; if sums are not held, with the first result.
    When the foreman leaves its node, workers get no more items: each hands over when it is done,
    the driver gets back the rest, and calls are answered at once, with the present sum.

    Attributes:
        answer_seconds: Seconds of work after which the foreman hands over without being asked.
        leaving: Whether the foreman is leaving its node.
    """

    def __init__(self, speeds: Speeds, clock: Callable[[], float] = perf_counter) -> None:
        super().__init__({}, speeds, clock=clock)
        self.closed = False
        self.answer_seconds = HOLD_SECONDS
        self.leaving = False
        self._calls: list[_Call] = []
        self._count = 0
        self._held: list[Item] = []
        self._missing: set[Item] = set()
        self._given_back: list[Item] = []
        self._held_seconds = 0.0

    def add_call(
        self,
        costs: Mapping[Item, float],
        hand_over: bool,
        barred: Mapping[Item, int] | None = None,
        order: Mapping[Item, float] | None = None,
    ) -> int:
        """Add a call; return its number.

        Args:
            costs: Work of each of its items.
            hand_over: Whether it asks for the sum.
            barred: The worker, if there are several, that must not have an item, by item.
            order: Places in the line of items that are not dealt.
        """
        order = order or {}
        self._count += 1
        self._missing.update(costs)
        collects = hand_over and self.answer_seconds != AT_ONCE
        waiting = {*(self._missing if collects else costs)}
        work = sum(costs.values())
        self._calls.append(_Call(self._count, work, waiting, hand_over, collects))
        self.closed = any(call.hand_over for call in self._calls)
        self.add({item: costs[item] for item in costs.keys() - order.keys()}, barred)
        self.add({item: costs[item] for item in order}, order=order)
        return self._count

    def next(self, number: int) -> Assignment | None:
        """Return a worker's next assignment, or None if it has enough items or must wait."""
        if self.leaving:
            self.leave(number)  # also if it has been replaced
        assignment = super().next(number)
        taken = assignment.items if assignment else []
        for call in self._calls:
            if not call.collects:
                call.waiting.difference_update(taken)
        return assignment

    def leave_node(self) -> None:
        """Start to leave the node: hand over finished items, and give back the rest."""
        self.leaving = True

    def returned(
        self,
        number: int,
        seconds: float,
        handed_over: Collection[Item] | None = None,
        given_back: Collection[Item] = (),
    ) -> Collection[Item]:
        """Note that a worker's oldest call has returned; return the items handed over with it."""
        handed_over = super().returned(number, seconds, handed_over, given_back)
        self._hold(handed_over)
        self._held_seconds += seconds / len(self._speeds.widths)
        return handed_over

    def give_up(self, item: Item) -> None:
        """Remove an item that no worker has been handed, as its result."""
        super().give_up(item)
        self._hold([item])

    def _is_due(self, call: _Call) -> bool:
        at_once = self.leaving or not call.collects
        waits_for_one = call.hand_over and at_once and self._missing
        waiting = call.waiting and not self.leaving
        return not waiting and bool(self._held or self._given_back or not waits_for_one)

    def _hold(self, items: Collection[Item]) -> None:
        self._held += items
        self._missing.difference_update(items)
        for call in self._calls:
            call.waiting.difference_update(items)

    def answers(self) -> list[Answer]:
        """Return the due answers, each once, in the order of the calls."""
        due = []
        if self.leaving:
            queued = self.withdraw()
            self._missing.difference_update(queued)
            self._given_back += queued
        while self._calls and self._is_due(self._calls[0]):
            call = self._calls.pop(0)
            speed = sum(self._speeds.estimates()) if self._speeds.known else 0.0
            seconds, items = call.work / speed if speed else 0.0, []
            if call.hand_over or self.leaving or self._held_seconds > self.answer_seconds:
                items, self._held, self._held_seconds = self._held, [], 0.0
            given_back, self._given_back = self._given_back, []
            due.append(Answer(call.number, seconds, items, given_back))
        self.closed = any(call.hand_over for call in self._calls)
        return due
