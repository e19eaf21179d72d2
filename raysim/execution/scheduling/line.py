"""Line of items that are not dealt, as those of asynchronous rounds: who has room takes some."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Generic

from raysim.execution.scheduling.dealing import Item

LINE_CHUNK_SECONDS = 0.16
"""Minimum duration of a chunk off the line, as CHUNK_SECONDS; each hands its sum over for 5 ms."""
LONG_SECONDS = 0.25
"""Seconds of work in a worker's hands from which it does not take more off the line.

It waits for the driver then, a hundredth of that; what comes first in the line is not left lying.
"""
FOREMAN_PORTIONS = 4
"""Calls in which a foreman takes an item for each of its workers off the line."""
HEAD_START = 4.0
"""Times of the work that all workers do meanwhile by which an item starts before it is due.

Workers may be twice as slow as their mean. In simulation, 192 rounds of 512 workers end 1 to 2%
above their bound with 3 to 6, and 4 to 5% with 0.
"""


def latest_starts(
    due: Mapping[Item, float], costs: Mapping[Item, float], workers: int
) -> dict[Item, float]:
    """Return places in a line: those that must start first to be done in time come first.

    An item that starts only when it is due holds up all that wait for it, the longer it is.

    Args:
        due: Work, of all items since some moment, by the end of which each is to be done.
        costs: Work of each item.
        workers: Items that are worked on at once.
    """
    return {item: at - HEAD_START * workers * costs[item] for item, at in due.items()}


class Line(Generic[Item]):
    """Items that are not dealt, by their places; those of one place in the order of coming."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Item]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, order: Mapping[Item, float]) -> None:
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
