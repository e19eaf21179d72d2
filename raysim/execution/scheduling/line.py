"""Line of undealt items, such as those of asynchronous rounds: workers with room take some."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Generic

from raysim.execution.scheduling.dealing import Item

LINE_CHUNK_SECONDS = 0.16
"""Minimum duration of a chunk from the line, as CHUNK_SECONDS; handing over its sum takes 5 ms."""
LONG_SECONDS = 0.25
"""Seconds of a worker's assigned work; with more, it takes none from the line.

It then waits for the driver, a hundredth of that time, while the first items go to other workers.
"""
FOREMAN_PORTIONS = 4
"""Number of calls to a foreman that take an item per worker from the line."""
HEAD_START = 4.0
"""Margin of starts before deadlines, as a multiple of the items' mean duration.

Workers may be twice as slow as their mean. In simulation, 192 rounds of 512 workers end 1 to 2%
above their bound with 3 to 6, and 4 to 5% with 0.
"""


def latest_starts(
    due: Mapping[Item, float], costs: Mapping[Item, float], workers: int
) -> dict[Item, float]:
    """Return places in a line by the latest start of each item that meets its deadline.

    A long item that started only at its deadline would delay all items that wait for it.

    Args:
        due: Deadline of each item, as the amount of work of all items, counted from some moment.
        costs: Work of each item.
        workers: Number of items processed at once.
    """
    return {item: at - HEAD_START * workers * costs[item] for item, at in due.items()}


class Line(Generic[Item]):
    """Undealt items, by their places, then in the order of their addition."""

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
        """Remove and return all items."""
        taken = [item for _, _, item in sorted(self._waiting)]
        self._waiting.clear()
        return taken

    def take(
        self, costs: Mapping[Item, float], min_work: float, fewest: int, most: int
    ) -> list[Item]:
        """Remove and return the first `fewest` to `most` items, up to `min_work`."""
        taken, work = list[Item](), 0.0
        while self._waiting and len(taken) < most:
            work += costs[self._waiting[0][2]]
            if len(taken) >= fewest and work > min_work:
                break
            taken.append(heappop(self._waiting)[2])
        return taken
