"""Shortening of runs whose numbers of rounds belong together: a figure's, or a column's."""

from __future__ import annotations

from collections.abc import Mapping


def shortened(rounds: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the rounds of some runs, shortened so that the longest has at most so many.

    All are shortened in proportion, and have one round at least.
    """
    longest = max(rounds.values())
    if longest <= most:
        return dict(rounds)
    return {name: max(count * most // longest, 1) for name, count in rounds.items()}
