"""Holding time of sums: how long a worker adds up clients before it hands over."""

from __future__ import annotations

HOLD_SECONDS = 10.0
"""Seconds of work before a worker hands over its sum, if that costs little."""
AT_ONCE = -1.0
"""Holding time of zero, in effect: each sum is needed at once."""
HAND_OVER_SHARE, MERGE_SHARE = 0.02, 0.2
"""Most seconds of adding up sums per second of a worker's work, and of its receiver's time."""


def hold_seconds(cost: float, workers: int) -> float:
    """Return the seconds of work before workers hand over, the most that a lost worker costs.

    Args:
        cost: Seconds of the receiver, a driver or foreman, for reading and adding one sum. Packing
            takes a worker about as long; Ray moves sums in its own processes.
        workers: Number of workers that send sums to one process.
    """
    return max(HOLD_SECONDS, cost / HAND_OVER_SHARE, workers * cost / MERGE_SHARE)
