"""Statistics over seeds: mean, sample deviation, and a paired bootstrap.

All are the same whatever the order of seeds and rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

SEEDS_FOR_BOOTSTRAP = 5
"""Seeds from which on rows are compared by the bootstrap."""
FEW = 3
"""Seeds below which a mean is marked."""
CONFIDENCE, RESAMPLES, SEED = 0.95, 9_999, 0


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return statistics.mean(values)


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample deviation (n-1); None of fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def is_separated(first: Sequence[float], second: Sequence[float]) -> bool:
    """Tell whether the 95% interval of the mean difference of paired values leaves out 0.

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
    """Return the best row, and from five seeds on those that are not separated from it.

    Args:
        rows: Value by seed of each row.
        larger: Whether the larger mean is the better.
    """
    means = {row: mean([*values.values()]) for row, values in rows.items() if values}
    if not means:
        return frozenset()
    best = (max if larger else min)(means.values())
    top = [row for row in means if means[row] == best]
    return frozenset(row for row in means if any(_equals(rows[row], rows[one]) for one in top))


def _equals(row: Mapping[int, float], best: Mapping[int, float]) -> bool:
    """Tell whether a row is the best one, or is not separated from it."""
    if row == best:
        return True
    seeds = sorted(row.keys() & best.keys())
    if len(seeds) < SEEDS_FOR_BOOTSTRAP:
        return mean([*row.values()]) == mean([*best.values()])
    return not is_separated([row[seed] for seed in seeds], [best[seed] for seed in seeds])
