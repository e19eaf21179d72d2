"""Schedule of a pass: assigns clients to workers in chunks.

Longest first: clients are queued, largest first, at the worker that would finish them first
(Graham's LPT rule, on workers of unequal speed). Each queue is handed out in shrinking chunks. Two
chunks are in flight per worker, so that none waits for the driver. An idle worker takes half of the
longest queue. The last items, at most one per worker, go to the workers that finish them first: a
slow worker that took one because it is idle would delay the end of the round. A worker holds its
sum over several chunks and hands it over once, when all queues are empty: a sum is as large as the
model, and returning one per chunk cost 15% of a round of the 2NN.

Items of asynchronous rounds wait in a line instead: workers with room take the first of them, and
new items come before the last is done. The line is sorted by latest starts: sorted by rounds, each
round would wait for the longest of its items on the slowest worker.

The class serves twice. The driver's schedule may have foremen as workers: fast ones, which process
as many items at once as they have workers. A foreman's own schedule stays open while the driver
adds items to it, and closes when the driver asks for the sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from time import perf_counter

from raysim.execution.scheduling.dealing import Speeds, take_chunk
from raysim.execution.scheduling.holding import HOLD_SECONDS
from raysim.execution.scheduling.line import (
    FOREMAN_PORTIONS,
    LINE_CHUNK_SECONDS,
    LONG_SECONDS,
    Line,
)
from raysim.execution.scheduling.queues import Queues
from raysim.execution.scheduling.worker_items import Assignment, Item

IN_FLIGHT = 2
SERVICE_SECONDS = 0.0008
"""Twice the driver's time per message; a chunk takes at least this times the number of workers."""
CHUNK_SECONDS = 0.08
"""Minimum duration of a chunk once speeds are known, if its worker has as much work queued.

A message costs driver and worker about 4 ms of their cores, a twentieth of this. Longer chunks
would pay in short rounds, but items in flight cannot be taken over when speeds change.
"""
MOST_LAST_ITEMS = 64
"""Most items that count as the last ones; dealing them to as many workers takes 0.3 ms."""


class Schedule:
    """Schedule of items on workers, until each item is in exactly one result.

    Workers are numbered; the calls of one worker return in order.

    Attributes:
        done: Number of finished clients in all items since the schedule was last empty.
        closed: Whether all items have been added: workers hand over when no items are queued.
        hold_seconds: Seconds of work after which a worker hands over earlier.
        queued: Number of items that no worker has been handed.
    """

    def __init__(
        self,
        costs: Mapping[Item, float],
        speeds: Speeds,
        barred: Mapping[Item, int] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Deal the items.

        Args:
            costs: Work of each item, a group of clients.
            speeds: Speeds of the workers, updated by every call.
            barred: The worker, if there are several, that must not have an item until it is lost,
                by item.
            clock: Returns the seconds since some moment.
        """
        self.done = 0
        self.closed, self.hold_seconds = True, HOLD_SECONDS
        self._speeds, self._clock = speeds, clock
        self._queues, self._line = Queues(speeds, clock), Line[Item]()
        self.queued = self._not_handed_over = 0
        self._set_limits()
        self.add(costs, barred)

    @property
    def deaths(self) -> Counter[Item]:
        """Number of workers lost while they processed each item."""
        return self._queues.deaths

    @property
    def finished(self) -> bool:
        """True once every item has been handed over."""
        return not self._not_handed_over

    def join(self, width: int = 1) -> None:
        """Add a worker of a width; it has started when it asks for `next`."""
        self._speeds.join(width)
        self._queues.join()
        self._set_limits()

    def add(
        self,
        costs: Mapping[Item, float],
        barred: Mapping[Item, int] | None = None,
        order: Mapping[Item, float] | None = None,
    ) -> None:
        """Add items, and deal them together with the queued ones.

        Args:
            costs: Work of each item.
            barred: The worker, if there are several, that must not have an item until it is lost,
                by item.
            order: Places of the items in the line, if they are not dealt.
        """
        if self.finished:
            self.done = 0
        self._queues.costs |= costs
        self._queues.barred |= barred or {}
        self.queued += len(costs)
        self._not_handed_over += len(costs)
        self._queues.last_dealt = False
        if order is None:
            self._queues.deal(costs)
        else:
            self._queues.look()
            self._line.add(order)

    def leave(self, number: int) -> bool:
        """Let a worker hand over and get no items until it is lost; return whether it is done."""
        worker = self._queues.workers[number]
        self._queues.last_dealt &= worker.leaving
        worker.leaving = True
        return not (worker.in_flight or worker.held)

    def woken(self) -> list[int]:
        """Return the further workers that need a call of `next` after an event."""
        if self.queued and self._at_last and not self._queues.last_dealt:
            self._queues.deal_last()
        over = self.closed and not self.queued
        return [
            number
            for number, worker in enumerate(self._queues.workers)
            if worker.idle and (worker.queue or (over and worker.held))
        ]

    def next(self, number: int) -> Assignment | None:
        """Return a worker's next assignment, or None if it has enough items or must wait."""
        worker = self._queues.workers[number]
        self._queues.last_dealt &= not worker.absent
        worker.idle, worker.absent = not worker.in_flight, False
        able = len(worker.in_flight) < IN_FLIGHT and not worker.leaving
        items = self._items_for(number) if able else []
        if items:
            hand_over = (self.closed and not self.queued) or self._held_long(number)
            assignment = Assignment(items, hand_over)
        elif worker.held and self._ends(number):
            assignment = Assignment([], True)
        else:
            return None
        if not worker.in_flight:
            worker.since, worker.idle = self._clock(), False
        worker.in_flight.append(assignment)
        worker.work_in_flight.append(self._queues.work(items))
        worker.held |= dict.fromkeys(items)
        return assignment

    def settled(self, due: Sequence[tuple[int, Assignment]]) -> list[tuple[int, Assignment]]:
        """Return the assignments to send to workers, once all due ones are known.

        If nothing stays queued, each worker hands over with its last one: a separate call would
        cost a trip of the worker to the driver and back.

        Args:
            due: The workers and the assignments that `next` just returned for them, in this order.
        """
        if not self.closed or self.queued:
            return [*due]
        settled = [*due]
        last = {number: at for at, (number, _) in enumerate(due)}
        for number, at in last.items():
            asked = due[at][1]._replace(hand_over=True)
            self._queues.workers[number].in_flight[-1] = asked
            settled[at] = (number, asked)
        return settled

    def returned(
        self,
        number: int,
        seconds: float,
        handed_over: Collection[Item] | None = None,
        given_back: Collection[Item] = (),
    ) -> Collection[Item]:
        """Note that a worker's oldest call has returned; return the items handed over with it.

        Args:
            number: The worker.
            seconds: Duration of the call; 0 is unknown.
            handed_over: Items with results in the call; None: all that it held, if it was asked.
            given_back: Items that a leaving foreman has handed to no worker.
        """
        worker = self._queues.workers[number]
        assignment = worker.in_flight.popleft()
        worker.since, self._queues.last_dealt = self._clock(), False
        self._speeds.measure(number, worker.work_in_flight.popleft(), seconds)
        self.done += sum(map(len, assignment.items))
        worker.held_seconds += seconds
        if handed_over is None:
            handed_over = worker.accumulated() if assignment.hand_over else ()
        if handed_over:
            self.done += sum(map(len, worker.hand_over(handed_over)))
            self._not_handed_over -= len(handed_over)
        self._queues.forget(number, [*assignment.items, *handed_over])
        if given_back:
            self.done -= self._queues.take_back(number, given_back)
            self.queued += len(given_back)
        return handed_over

    def lost(self, number: int, suspicious: bool = True) -> Assignment:
        """Take back all items that a lost worker had not handed over; return its running call.

        A new worker takes its place; it may process all items.

        Args:
            number: The worker.
            suspicious: Whether the processed items may have been the cause.
        """
        first, waiting, accumulated = self._queues.lose(number, suspicious)
        self.done -= sum(map(len, accumulated))
        self.queued += len(first.items) + len(waiting) + len(accumulated)
        return first

    def withdraw(self) -> list[Item]:
        """Remove and return all items that no worker has been handed, for other foremen."""
        items = [*self._queues.clear(), *self._line.clear()]
        self.queued -= len(items)
        self._not_handed_over -= len(items)
        self._queues.forget(0, items)
        return items

    def give_up(self, item: Item) -> None:
        """Remove an item that no worker has been handed, which counts as done."""
        self._queues.strike_out(item)
        self.queued -= 1
        self._not_handed_over -= 1
        self.done += len(item)

    def _set_limits(self) -> None:
        widths = self._speeds.widths
        several = 1 < len(widths) <= MOST_LAST_ITEMS and max(widths) == 1
        self._last_items = len(widths) if several else 0
        self._service_seconds = SERVICE_SECONDS * len(widths)

    def _items_for(self, number: int) -> list[Item]:
        """Remove a worker's next chunk from the queues and return it."""
        worker = self._queues.workers[number]
        if self._line and not worker.queue:
            return self._first_in_line(number)
        if not worker.in_flight and self.queued:
            if not self._at_last and not worker.queue:
                self._queues.steal_for(number)
            elif self._at_last and not self._queues.last_dealt:
                self._queues.deal_last()
        if not worker.queue:
            return []
        suspect = worker.queue[0] in self.deaths
        several = len(self._queues.workers) > 1
        last_of_many = several and (len(worker.queue) == 1 or self._at_last)
        if worker.in_flight and (suspect or last_of_many):
            return []  # an idle worker may take the last items; suspects are tried alone
        width, queue, costs = self._speeds.widths[number], worker.queue, self._queues.costs
        min_work = self._min_work(number, CHUNK_SECONDS)
        items = [queue.popleft()] if suspect else take_chunk(queue, costs, min_work, width)
        self.queued -= len(items)
        self._queues.update_work(number)
        return items

    def _first_in_line(self, number: int) -> list[Item]:
        """Return a worker's next chunk from the line: worth a message, but at most its share."""
        width, all_widths = self._speeds.widths[number], sum(self._speeds.widths)
        if self._queues.workers[number].in_flight and (
            self._at_last or (width == 1 and self._queues.seconds_in_flight(number) > LONG_SECONDS)
        ):
            return []  # left to idle workers
        min_work = self._min_work(number, LINE_CHUNK_SECONDS)
        fewest = -(-width // FOREMAN_PORTIONS)
        most = max(len(self._line) * width // all_widths, fewest)
        items = self._line.take(self._queues.costs, min_work, fewest, most)
        self.queued -= len(items)
        return items

    def _min_work(self, number: int, seconds: float) -> float:
        return max(seconds, self._service_seconds) * self._queues.estimates[number]

    @property
    def _at_last(self) -> bool:
        return self.queued <= self._last_items

    def _held_long(self, number: int) -> bool:
        """Return whether a worker must hand over before the end, as foremen do by themselves."""
        alone = self._speeds.widths[number] == 1
        return alone and self._queues.workers[number].held_seconds > self.hold_seconds

    def _ends(self, number: int) -> bool:
        """Return whether a worker gets no more items, and must hand over now."""
        workers, barred = self._queues.workers, self._queues.barred
        worker = workers[number]
        if worker.leaving:  # as soon as it has no calls, or never
            return not any(call.hand_over for call in worker.in_flight)
        if not (worker.idle and self.closed):
            return False
        return not self._line and all(
            barred.get(item) == number for worker in workers for item in worker.queue
        )
