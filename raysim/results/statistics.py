"""Statistics over seeds: mean, sample deviation, and a paired bootstrap.

No value depends on the order of seeds or rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

SEEDS_FOR_BOOTSTRAP = 5
"""Least number of seeds for comparing rows by the bootstrap."""
FEW = 3
"""Number of seeds below which a mean is marked."""
CONFIDENCE, RESAMPLES, SEED = 0.95, 9_999, 0


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return statistics.mean(values)


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample deviation (n-1); None for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def is_separated(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether the 95% interval of the mean difference of paired values excludes 0.

    The interval is the percentile bootstrap's over pairs, with a fixed seed.
    """
    from scipy.stats import bootstrap

    differences = np.sort(np.subtract(first, second))  # [n]; the order of pairs must not matter
    if differences[0] == differences[-1]:
        return bool(differences[0] != 0)
    interval = bootstrap(
        (differences,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return bool(interval.low > 0 or interval.high < 0)


def best_rows(rows: Mapping[str, Mapping[int, float]], *, larger: bool) -> frozenset[str]:
    """Return the best row and, with at least five seeds, the rows not separated from it.

    Rows with fewer seeds than others are left out. No row is the best if fewer than two remain, or
    if they have different seeds: means over shared seeds would not be the cells' means.

    Args:
        rows: Value by seed of each row.
        larger: Whether the larger mean is better.
    """
    most = max(map(len, rows.values()), default=0)
    compared = {row: values for row, values in rows.items() if len(values) == most}
    seeds = shared_seeds(*compared.values())
    if not seeds or len(seeds) < most or len(compared) < 2:
        return frozenset()
    paired = {row: [values[seed] for seed in seeds] for row, values in compared.items()}
    means = {row: mean(values) for row, values in paired.items()}
    best = (max if larger else min)(means.values())
    top = [row for row in means if means[row] == best]
    return frozenset(row for row in means if any(_equals(paired[row], paired[one]) for one in top))


def shared_seeds(*rows: Mapping[int, float]) -> list[int]:
    """Return the seeds for which all rows have a value, ascending."""
    return sorted(set.intersection(*map(set, rows))) if rows else []


def _equals(row: Sequence[float], best: Sequence[float]) -> bool:
    """Return whether a row is the best or not separated from it, over the same seeds."""
    if row == best:
        return True
    if len(row) < SEEDS_FOR_BOOTSTRAP:
        return mean(row) == mean(best)
    return not is_separated(row, best)
