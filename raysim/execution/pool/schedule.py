"""Schedule of a pass: assigns clients to workers in chunks.

Longest first: clients are queued, largest first, at the worker that would finish them first
(Graham's LPT rule, on workers of unequal speed). Each queue is handed out in chunks that shrink, so
that the last ones are small. Two chunks are in flight per worker, so that none waits for the
driver. An idle worker takes half of the longest queue. A worker holds its sum over several chunks
and hands it over once, when all queues are empty: a sum is as large as the model, and returning one
per chunk cost 15% of a round of the 2NN.

The module uses neither Ray nor clocks nor tensors: `tests/benchmarks/scaling/simulation.py` runs it
for any number of workers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from raysim.execution.pool.dealing import Speeds, assign, steal, take_chunk

IN_FLIGHT = 2
SERVICE_SECONDS = 0.0008
"""Twice the driver's time per message; a chunk takes at least this times the workers."""
CHUNK_SECONDS = 0.08
"""Minimum duration of a chunk once speeds are known, if its worker has as much work queued.

A message costs driver and worker about 4 ms of their cores: a twentieth of that. More would pay in
short rounds, but what is in flight cannot be taken over where speeds change.
"""
HOLD_SECONDS = 10.0
"""Seconds of work after which a worker hands over its sum; more is never lost with it."""


class Assignment(NamedTuple):
    """Assignment of one call to a worker: a chunk, or the order to hand over.

    Attributes:
        items: What it works on.
        hand_over: Whether it then hands over the sum of all that it holds.
    """

    items: list[tuple[int, ...]]
    hand_over: bool


class Schedule:
    """Schedule of items on workers, until each item is in exactly one result.

    Workers are numbered; the calls of one worker return in the order in which they were made.

    Attributes:
        done: Clients done, in all items together.
        deaths: Per item, how often its worker was lost while it was being worked on.
    """

    def __init__(
        self,
        costs: Mapping[tuple[int, ...], float],
        speeds: Speeds,
        barred: Mapping[tuple[int, ...], int] | None = None,
    ) -> None:
        """Deal the items.

        Args:
            costs: Work of each item, a group of clients.
            speeds: How fast the workers are; it learns from every call.
            barred: Items that one of several workers must not have until it is lost, and which.
        """
        self.done = 0
        self.deaths: Counter[tuple[int, ...]] = Counter()
        self._costs, self._speeds = costs, speeds
        self._speed_estimates = speeds.estimates()
        self._barred = dict(barred or {})
        self._queues = assign(costs, self._speed_estimates, self._barred)
        workers = range(len(self._queues))
        self._seconds_left = [self._seconds_of_queue(worker) for worker in workers]
        self._min_chunk_seconds = max(CHUNK_SECONDS, SERVICE_SECONDS * len(workers))
        self._in_flight: list[deque[Assignment]] = [deque() for _ in workers]
        self._accumulated: list[list[tuple[int, ...]]] = [[] for _ in workers]
        self._accumulated_seconds = [0.0 for _ in workers]
        self._queued = self._not_handed_over = len(costs)

    @property
    def finished(self) -> bool:
        """True once every item has been handed over."""
        return not self._not_handed_over

    def next(self, worker: int) -> Assignment | None:
        """Return what to hand a worker now, or None where it has enough or must wait."""
        queue, in_flight = self._queues[worker], self._in_flight[worker]
        if len(in_flight) == IN_FLIGHT:
            return None
        if not queue and not in_flight and self._queued:
            self._steal_for(worker)
        if queue:
            suspect = queue[0] in self.deaths
            last_of_many = len(queue) == 1 and len(self._queues) > 1
            if in_flight and (suspect or last_of_many):
                return None  # an idle worker may take the last one; a suspect is tried alone
            items = self._take(worker, suspect)
            hand_over = not self._queued or self._accumulated_seconds[worker] > HOLD_SECONDS
            assignment = Assignment(items, hand_over)
        elif self._accumulated[worker] and not in_flight:
            assignment = Assignment([], True)
        else:
            return None
        in_flight.append(assignment)
        return assignment

    def returned(self, worker: int, seconds: float) -> Assignment:
        """Note that a worker's oldest call has returned after so long; return what it was."""
        assignment = self._in_flight[worker].popleft()
        if assignment.items:
            self._speeds.measure(worker, self._work(assignment.items), seconds)
        self._accumulated[worker] += assignment.items
        self._accumulated_seconds[worker] += seconds
        self.done += sum(map(len, assignment.items))
        if assignment.hand_over:
            self._not_handed_over -= len(self._accumulated[worker])
            self._accumulated[worker], self._accumulated_seconds[worker] = [], 0.0
        return assignment

    def lost(self, worker: int, suspicious: bool = True) -> Assignment:
        """Take back all that a lost worker had not handed over; return what it was working on.

        A new worker takes its place: nothing is barred from that one.

        Args:
            worker: The worker.
            suspicious: Whether what it was working on may have been the cause.
        """
        accumulated = self._accumulated[worker]
        first, *later = self._in_flight[worker] or [Assignment([], hand_over=False)]
        if suspicious:
            self.deaths.update(first.items)
        self.done -= sum(map(len, accumulated))
        unfinished = [*(item for assignment in later for item in assignment.items), *accumulated]
        self._queues[worker].extendleft(reversed(unfinished))
        judge = self._other_than(worker, first.items) if suspicious else worker
        self._queues[judge].extendleft(reversed(first.items))
        self._queued += len(first.items) + len(unfinished)
        self._update_seconds_left(worker)
        self._update_seconds_left(judge)
        self._barred = {item: at for item, at in self._barred.items() if at != worker}
        self._in_flight[worker], self._accumulated[worker], self._accumulated_seconds[worker] = (
            deque(),
            [],
            0.0,
        )
        return first

    def _other_than(self, worker: int, items: Sequence[tuple[int, ...]]) -> int:
        """Return another worker, which shows whether suspects are the cause, if there is one."""
        seen = {worker, *(self._barred.get(item) for item in items)}
        others = [other for other in range(len(self._queues)) if other not in seen]
        return min(others, key=self._seconds_left.__getitem__, default=worker)

    def give_up(self, item: tuple[int, ...]) -> None:
        """Strike out an item that no worker has been handed; it counts as done."""
        worker = next(n for n, queue in enumerate(self._queues) if item in queue)
        self._queues[worker].remove(item)
        self._queued -= 1
        self._not_handed_over -= 1
        self.done += len(item)
        self._update_seconds_left(worker)

    def _take(self, worker: int, suspect: bool) -> list[tuple[int, ...]]:
        queue, min_work = (
            self._queues[worker],
            self._min_chunk_seconds * self._speed_estimates[worker],
        )
        items = [queue.popleft()] if suspect else take_chunk(queue, self._costs, min_work)
        self._queued -= len(items)
        self._update_seconds_left(worker)
        return items

    def _steal_for(self, worker: int) -> None:
        """Take from the worker that would be busy longest with what it has not been handed."""
        barred = {item for item, at in self._barred.items() if at == worker}
        others = [n for n, queue in enumerate(self._queues) if any(i not in barred for i in queue)]
        if not others:
            return
        victim = max(others, key=self._seconds_left.__getitem__)
        self._queues[worker].extend(steal(self._queues[victim], barred))
        self._update_seconds_left(worker)
        self._update_seconds_left(victim)

    def _update_seconds_left(self, worker: int) -> None:
        self._seconds_left[worker] = self._seconds_of_queue(worker)

    def _seconds_of_queue(self, worker: int) -> float:
        return self._work(self._queues[worker]) / self._speed_estimates[worker]

    def _work(self, items: Iterable[tuple[int, ...]]) -> float:
        return sum(self._costs[item] for item in items)
