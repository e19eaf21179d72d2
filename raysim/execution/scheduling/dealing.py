"""Dealing: which worker gets which items, and in what portions; what workers' speeds are."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

import numpy as np

Item = TypeVar("Item", int, tuple[int, ...])

CHUNK_FRACTION = 0.2
"""Fraction of a worker's queued work that its next chunk takes.

With speeds that differ threefold and are not known yet, as in a first round, 64 workers were busy
for 89% of it, and for 74% with a fraction of 0.34: what is in flight cannot be taken over.
"""
DECAY = 0.9
"""Weight of a measured speed after the next measurement, as in a moving average."""


def assign(
    costs: Mapping[Item, float],
    speeds: Sequence[float],
    barred: Mapping[Item, int] | None = None,
    busy: Sequence[float] | None = None,
) -> list[deque[Item]]:
    """Deal items to workers, longest first.

    Args:
        costs: Work of each item, for example samples x epochs.
        speeds: Work per second of each worker.
        barred: Items that one of several workers must not have, and which.
        busy: Seconds that each worker needs for what it has already; of one that gets none, inf.

    Returns:
        Per worker, its items, longest first.
    """
    queues: list[deque[Item]] = [deque() for _ in speeds]
    seconds_per_work = 1 / np.asarray(speeds, dtype=np.float64)
    finish = np.zeros(len(speeds)) if busy is None else np.array(busy, dtype=np.float64)
    for item in sorted(costs, key=lambda item: (-costs[item], item)):
        after = finish + costs[item] * seconds_per_work
        if barred and item in barred:
            after[barred[item]] = np.inf
        worker = int(after.argmin())
        if after[worker] == np.inf:
            continue  # nobody may have it
        finish[worker] = after[worker]
        queues[worker].append(item)
    return queues


def take_chunk(
    queue: deque[Item], costs: Mapping[Item, float], min_work: float = 0.0, min_items: int = 1
) -> list[Item]:
    """Take the next chunk off the front of a worker's queue.

    Args:
        queue: What the worker has not been handed.
        costs: Work of each item.
        min_work: Work that a chunk should hold, if there is as much.
        min_items: Items that it holds, if there are as many.

    Returns:
        At least so many items; more only where their work stays within the target.
    """
    target_work = max(CHUNK_FRACTION * sum(costs[item] for item in queue), min_work)
    chunk = [queue.popleft() for _ in range(min(max(min_items, 1), len(queue)))]
    taken = sum(costs[item] for item in chunk)
    while queue and taken + costs[queue[0]] <= target_work:
        taken += costs[queue[0]]
        chunk.append(queue.popleft())
    return chunk


def steal(victim: deque[Item], barred: Container[Item] = ()) -> deque[Item]:
    """Take half of what a worker has not been handed yet, its smallest items, but none barred."""
    able = [item for item in victim if item not in barred]
    stolen = able[len(able) // 2 :]
    remove(victim, stolen)
    return deque(stolen)


def remove(queue: deque[Item], items: Collection[Item]) -> None:
    """Take items out of a queue."""
    rest = set(queue).difference(items)
    left = [item for item in queue if item in rest]
    queue.clear()
    queue.extend(left)


class Line(Generic[Item]):
    """Items that are not dealt, by their places; those of one place in the order of coming."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Item]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, order: Mapping[Item, int]) -> None:
        """Add items at their places."""
        for item, place in order.items():
            heappush(self._waiting, (place, next(self._numbers), item))

    def clear(self) -> list[Item]:
        """Take all items."""
        taken = [item for _, _, item in sorted(self._waiting)]
        self._waiting.clear()
        return taken

    def take(
        self, costs: Mapping[Item, float], min_work: float, fewest: int, most: int
    ) -> list[Item]:
        """Take the first items: so much work, but at least and at most so many of them."""
        taken, work = list[Item](), 0.0
        while self._waiting and len(taken) < most:
            work += costs[self._waiting[0][2]]
            if len(taken) >= fewest and work > min_work:
                break
            taken.append(heappop(self._waiting)[2])
        return taken


class Speeds:
    """Work per second of each worker, learned from its calls; older ones count less and less.

    Attributes:
        widths: Items that each works on at once: a foreman as many as it has workers.
    """

    def __init__(self, workers: int = 0) -> None:
        self._work = [0.0] * workers
        self._seconds = [0.0] * workers
        self.widths = [1] * workers

    def join(self, width: int = 1) -> None:
        """Count one more worker, never measured."""
        self._work.append(0.0)
        self._seconds.append(0.0)
        self.widths.append(width)

    def measure(self, worker: int, work: float, seconds: float) -> None:
        """Learn from a call: so much work took so long; 0 is not known."""
        if seconds:
            self._work[worker] = DECAY * self._work[worker] + work
            self._seconds[worker] = DECAY * self._seconds[worker] + seconds

    def estimates(self) -> list[float]:
        """Return the speeds; a worker never measured counts as the others' mean, by width."""
        pairs = zip(self._work, self._seconds, strict=True)
        known = [work / seconds if seconds else None for work, seconds in pairs]
        measured = [s / width for s, width in zip(known, self.widths, strict=True) if s]
        mean = sum(measured) / len(measured) if measured else 1.0
        return [s or mean * width for s, width in zip(known, self.widths, strict=True)]

    @property
    def known(self) -> bool:
        """True once any worker was measured."""
        return any(self._seconds)
