"""Which worker gets which clients, and how many at a time. Pure functions.

Longest first: clients are dealt, largest first, to the worker that would finish them first
(Graham's LPT rule, on workers of unequal speed). Each worker's share is handed out in chunks that
shrink, so the last ones are small.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

Item = TypeVar("Item", int, tuple[int, ...])

CHUNK_SHARE = 0.34
"""The part of a worker's remaining work that its next chunk takes."""


def assign(costs: Mapping[Item, float], speeds: Sequence[float]) -> list[deque[Item]]:
    """Deal items to workers, longest first.

    Args:
        costs: Work of each item, for example samples x epochs.
        speeds: Work per second of each worker.

    Returns:
        Per worker, its items, longest first.
    """
    queues: list[deque[Item]] = [deque() for _ in speeds]
    pace = 1 / np.asarray(speeds, dtype=np.float64)
    finish = np.zeros(len(speeds))
    for item in sorted(costs, key=lambda item: (-costs[item], item)):
        after = finish + costs[item] * pace
        worker = int(after.argmin())
        finish[worker] = after[worker]
        queues[worker].append(item)
    return queues


def take_chunk(queue: deque[Item], costs: Mapping[Item, float]) -> list[Item]:
    """Take the next chunk off the front of a worker's queue: at least one item."""
    wanted = CHUNK_SHARE * sum(costs[item] for item in queue)
    chunk = [queue.popleft()]
    taken = costs[chunk[0]]
    while queue and taken + costs[queue[0]] <= wanted:
        taken += costs[queue[0]]
        chunk.append(queue.popleft())
    return chunk


def steal(queues: Sequence[deque[Item]], costs: Mapping[Item, float]) -> deque[Item]:
    """Take half of what the most loaded worker has not been handed yet, its smallest items."""
    richest = max(queues, key=lambda queue: sum(costs[item] for item in queue))
    return deque(reversed([richest.pop() for _ in range((len(richest) + 1) // 2)]))
