"""Dealing of items to workers, chunks of their queues, and workers' speeds."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Mapping, Sequence
from typing import TypeVar

import numpy as np

Item = TypeVar("Item", int, tuple[int, ...])

CHUNK_FRACTION = 0.2
"""Fraction of a worker's queued work in its next chunk.

With unknown speeds that differ threefold, as in a first round, 64 workers were busy for 89% of it,
and for 74% with a fraction of 0.34: items in flight cannot be taken over.
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
        barred: The worker, if there are several, that must not have an item, by item.
        busy: Seconds that each worker needs for its present items; inf for one that gets none.

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
            continue  # no worker may have it
        finish[worker] = after[worker]
        queues[worker].append(item)
    return queues


def take_chunk(
    queue: deque[Item], costs: Mapping[Item, float], min_work: float = 0.0, min_items: int = 1
) -> list[Item]:
    """Remove the next chunk from the front of a worker's queue.

    Args:
        queue: Items that the worker has not been handed.
        costs: Work of each item.
        min_work: Least work of a chunk, if the queue has as much.
        min_items: Least number of items of a chunk, if the queue has as many.

    Returns:
        The chunk: at least `min_items` items, more only if their work stays within the target.
    """
    target_work = max(CHUNK_FRACTION * sum(costs[item] for item in queue), min_work)
    chunk = [queue.popleft() for _ in range(min(max(min_items, 1), len(queue)))]
    taken = sum(costs[item] for item in chunk)
    while queue and taken + costs[queue[0]] <= target_work:
        taken += costs[queue[0]]
        chunk.append(queue.popleft())
    return chunk


def steal(victim: deque[Item], barred: Container[Item] = ()) -> deque[Item]:
    """Remove half of a worker's queue and return it: its smallest items, without barred ones."""
    able = [item for item in victim if item not in barred]
    stolen = able[len(able) // 2 :]
    remove(victim, stolen)
    return deque(stolen)


def remove(queue: deque[Item], items: Collection[Item]) -> None:
    """Remove items from a queue."""
    rest = set(queue).difference(items)
    left = [item for item in queue if item in rest]
    queue.clear()
    queue.extend(left)


class Speeds:
    """Work per second of each worker, a decaying average over its calls.

    Attributes:
        widths: Number of items that each worker processes at once: of a foreman, its workers.
    """

    def __init__(self, workers: int = 0) -> None:
        self._work = [0.0] * workers
        self._seconds = [0.0] * workers
        self.widths = [1] * workers

    def join(self, width: int = 1) -> None:
        """Add a worker without measurements."""
        self._work.append(0.0)
        self._seconds.append(0.0)
        self.widths.append(width)

    def measure(self, worker: int, work: float, seconds: float) -> None:
        """Add a call's work and duration to a worker's average; 0 seconds are unknown."""
        if seconds:
            self._work[worker] = DECAY * self._work[worker] + work
            self._seconds[worker] = DECAY * self._seconds[worker] + seconds

    def estimates(self) -> list[float]:
        """Return the speeds; a worker without measurements has the others' mean, by width."""
        pairs = zip(self._work, self._seconds, strict=True)
        known = [work / seconds if seconds else None for work, seconds in pairs]
        measured = [s / width for s, width in zip(known, self.widths, strict=True) if s]
        mean = sum(measured) / len(measured) if measured else 1.0
        return [s or mean * width for s, width in zip(known, self.widths, strict=True)]

    @property
    def known(self) -> bool:
        """True once any worker has been measured."""
        return any(self._seconds)
