"""Holding time of sums: a worker adds up clients that long before it hands over."""

from __future__ import annotations

HOLD_SECONDS = 10.0
"""Seconds of work after which a worker hands over its sum, if that costs little."""
HAND_OVER_SHARE, MERGE_SHARE = 0.02, 0.2
"""Largest parts that handing over takes of a worker's time, and of its driver's or foreman's."""


def hold_seconds(cost: float, workers: int) -> float:
    """Return the seconds of work after which workers hand over; more is never lost with one.

    Args:
        cost: Measured seconds of handing over one sum, those of adding it up included.
        workers: Workers whose sums one process adds up.
    """
    return max(HOLD_SECONDS, cost / HAND_OVER_SHARE, workers * cost / MERGE_SHARE)
