"""Holding time of sums: a worker adds up clients that long before it hands over."""

from __future__ import annotations

HOLD_SECONDS = 10.0
"""Seconds of work after which a worker hands over its sum, if that costs little."""
AT_ONCE = -1.0
"""Seconds that stand for no holding at all: somebody waits for each sum."""
HAND_OVER_SHARE, MERGE_SHARE = 0.02, 0.2
"""Most seconds of adding sums up for each second of a worker's work, and of its receiver's time."""


def hold_seconds(cost: float, workers: int) -> float:
    """Return the seconds of work after which workers hand over; more is never lost with one.

    Args:
        cost: Seconds that the receiver, a driver or foreman, took to read one sum and add it up.
            Packing takes a worker about as long; Ray moves sums in processes of its own.
        workers: Workers whose sums one process adds up.
    """
    return max(HOLD_SECONDS, cost / HAND_OVER_SHARE, workers * cost / MERGE_SHARE)
