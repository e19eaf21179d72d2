"""Statistics over seeds: mean, sample deviation, and paired t-tests against the best row.

No value depends on the order of seeds or rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

SEEDS_FOR_TEST = 5
"""Least number of seeds for comparing rows."""
FEW = 3
"""Number of seeds below which a mean is marked."""
LEVEL = 0.05
"""Probability that rows of equal means are told apart, over all rows of a column."""
ROUNDING = 1e-12
"""Largest difference, relative to the largest value, that rounding may make."""


@dataclass(frozen=True)
class Difference:
    """Difference of a row from the best row of its column, paired by seeds.

    Attributes:
        mean: Mean over seeds of the row's value minus the best row's.
        low: Lower end of its 95% interval, by Student's t, for this pair alone.
        high: Upper end.
        p: Two-sided p of the paired t-test, by Holm over all pairs of rows of the column.
    """

    mean: float
    low: float
    high: float
    p: float

    @property
    def is_equal(self) -> bool:
        """True if both rows have the same value for each seed, up to rounding."""
        return self.mean == self.low == self.high == 0

    @property
    def is_separated(self) -> bool:
        """True if the test tells the row from the best one."""
        return self.p <= LEVEL


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return statistics.mean(values)


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample deviation (n-1); None for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def paired_t(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return the mean difference of at least two pairs, first minus second, with its t-test.

    Differences that are all equal have an interval of no width, and p=0 unless they are 0, as those
    of rounding count.
    """
    from scipy.special import stdtr, stdtrit

    differences = np.sort(np.subtract(first, second))  # [n]; the order of pairs must not matter
    if np.abs(differences).max() <= ROUNDING * np.abs([first, second]).max():
        differences = np.zeros_like(differences)
    center, free = float(differences.mean()), len(differences) - 1
    if differences[0] == differences[-1]:
        center = float(differences[0])
        return Difference(center, center, center, float(center == 0))
    error = float(differences.std(ddof=1)) / math.sqrt(free + 1)
    reach = float(stdtrit(free, 1 - LEVEL / 2)) * error
    p = 2 * float(stdtr(free, -abs(center / error)))
    return Difference(center, center - reach, center + reach, p)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm, Scand. J. Statist. 6, 1979), in order."""
    count = len(probabilities)
    adjusted, largest = [0.0] * count, 0.0
    for rank, place in enumerate(sorted(range(count), key=probabilities.__getitem__)):
        largest = max(largest, min(1.0, (count - rank) * probabilities[place]))
        adjusted[place] = largest
    return adjusted


def differences_from_best(
    rows: Mapping[str, Mapping[int, float]], *, larger: bool
) -> dict[str, Difference | None]:
    """Return the difference of each row from the row of the best mean; None for that row itself.

    The best row is found in the values that it is tested by, so p is adjusted over all pairs of
    rows: by Holm over the other rows alone, six equal rows would be told apart in 9% of cases.
    Rows with fewer seeds than others are left out. The result is empty if fewer than two rows
    remain, if they have fewer than five seeds, or if they have different seeds: means over shared
    seeds would not be the cells' means. Of several rows with the best mean, the first by name is
    the best.

    Args:
        rows: Value by seed of each row.
        larger: Whether the larger mean is better.
    """
    most = max(map(len, rows.values()), default=0)
    compared = {row: rows[row] for row in sorted(rows) if len(rows[row]) == most}
    seeds = shared_seeds(*compared.values())
    if most < SEEDS_FOR_TEST or len(seeds) < most or len(compared) < 2:
        return {}
    paired = {row: [values[seed] for seed in seeds] for row, values in compared.items()}
    best = (max if larger else min)(paired, key=lambda row: mean(paired[row]))
    pairs = [*combinations(paired, 2)]
    adjusted = holm([paired_t(paired[one], paired[other]).p for one, other in pairs])
    p = dict(zip(map(frozenset, pairs), adjusted, strict=True))
    return {
        row: None
        if row == best
        else replace(paired_t(values, paired[best]), p=p[frozenset((row, best))])
        for row, values in paired.items()
    }


def shared_seeds(*rows: Mapping[int, float]) -> list[int]:
    """Return the seeds with a value in all rows, ascending."""
    return sorted(set.intersection(*map(set, rows))) if rows else []
