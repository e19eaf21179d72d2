"""Thinning: some of many points, clients or bars, for a chart that cannot show them all."""

from __future__ import annotations


def evenly_chosen(count: int, most: int) -> list[int]:
    """Return at most `most` of the indices below `count`: all, or the first, the last, and others.

    Args:
        count: Number of indices.
        most: Most of them to choose, at least two.
    """
    if count <= most:
        return [*range(count)]
    return [round(number * (count - 1) / (most - 1)) for number in range(most)]
