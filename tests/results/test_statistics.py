"""Statistics over seeds, on samples whose answer is known, and the level of the test."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from raysim.results.statistics import (
    LEVEL,
    deviation,
    differences_from_best,
    holm,
    mean,
    paired_t,
)


def test_mean_and_sample_deviation():
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert deviation([1.0, 2.0, 6.0]) == pytest.approx(7**0.5)  # (4 + 1 + 9) / 2
    assert deviation([1.0]) is None


def test_the_paired_t_test_by_hand():
    """Differences 1 to 5: mean 3, error (2.5 / 5)^0.5, t = 18^0.5 with 4 degrees of freedom."""
    found = paired_t([11.0, 12.0, 13.0, 14.0, 15.0], [10.0] * 5)
    assert found.mean == 3.0
    assert found.high - found.mean == pytest.approx(2.776445 * 0.5**0.5, rel=1e-6)  # of tables
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert found.p == pytest.approx(0.0132356, rel=1e-5)


@given(st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_the_paired_t_test_is_that_of_scipy(count, seed):
    first, second = np.random.default_rng(seed).normal(size=(2, count))
    found, expected = paired_t(first, second), ttest_rel(first, second)
    low, high = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=1e-12)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)


@pytest.mark.parametrize(("difference", "p"), {0.0: 1.0, 0.5: 0.0, -0.5: 0.0}.items())
def test_differences_that_are_all_equal(difference, p):
    found = paired_t([1.0 + difference] * 5, [1.0] * 5)
    assert (found.mean, found.low, found.high, found.p) == (*[difference] * 3, p)


def test_differences_of_rounding_are_none():
    assert paired_t([0.1 + 0.2] * 5, [0.3] * 5).p == 1.0
    assert paired_t([0.1 + 0.2, 0.3, 0.3, 0.3, 0.3], [0.3] * 5).p == 1.0


def test_holm_by_hand():
    """Ascending, p is times 4, 3, 2 and 1, and no smaller than the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.4]) == pytest.approx([0.9, 0.8])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


BY_SEED = {
    "best": dict(enumerate([0.90, 0.92, 0.91, 0.93, 0.94])),
    "alike": dict(enumerate([0.91, 0.91, 0.92, 0.92, 0.93])),
    "worse": dict(enumerate([0.80, 0.81, 0.82, 0.80, 0.81])),
    "worse, by pairs": dict(enumerate([0.89, 0.91, 0.90, 0.92, 0.93])),
}


def leading(rows, larger=True):
    found = differences_from_best(rows, larger=larger)
    return {row for row, each in found.items() if each is None or not each.is_separated}


def test_rows_against_the_best():
    found = differences_from_best(BY_SEED, larger=True)
    assert found["best"] is None
    assert leading(BY_SEED) == {"best", "alike"}
    assert leading(BY_SEED, larger=False) == {"worse"}
    pairs = [(a, b) for a in BY_SEED for b in BY_SEED if a < b]
    raw = [ttest_rel([*BY_SEED[a].values()], [*BY_SEED[b].values()]).pvalue for a, b in pairs]
    raw[pairs.index(("best", "worse, by pairs"))] = 0.0  # a hundredth with each seed, in floats
    adjusted = dict(zip(pairs, holm(raw), strict=True))
    for row in ("alike", "worse"):
        expected = adjusted[min(row, "best"), max(row, "best")]
        assert found[row].p == pytest.approx(expected, rel=1e-6)
        own, best = ([*BY_SEED[name].values()] for name in (row, "best"))
        assert found[row].mean == pytest.approx(np.mean(own) - np.mean(best))


def test_a_row_of_the_same_values_as_the_best():
    found = differences_from_best({**BY_SEED, "a twin": BY_SEED["best"]}, larger=True)
    assert found["a twin"] is None and found["best"].p == 1.0  # the first by name


def test_rows_of_fewer_seeds_than_others_are_not_compared():
    """Of seed 0 alone, `alike` is the best row."""
    one = {"only": {0: 0.60}}
    for rows in ({**BY_SEED, **one}, {**one, **BY_SEED}, {**BY_SEED, "only": {0: 1.0, 7: 1.0}}):
        assert leading(rows) == {"best", "alike"}
    longer = {**BY_SEED, "best": BY_SEED["best"] | {5: 0.1}}
    assert differences_from_best(longer, larger=True) == {}


def test_nothing_is_compared_where_rows_have_other_seeds():
    shifted = {seed + 1: value for seed, value in BY_SEED["alike"].items()}
    assert differences_from_best({**BY_SEED, "shifted": shifted}, larger=True) == {}
    for rows in ({}, {"a": {}}, {"a": {}, "b": {}}, {"a": BY_SEED["best"]}):
        assert differences_from_best(rows, larger=True) == {}


def test_below_five_seeds_nothing_is_compared():
    few = {row: {seed: values[seed] for seed in range(4)} for row, values in BY_SEED.items()}
    assert differences_from_best(few, larger=True) == {}


@hypothesis_settings(max_examples=20)
@given(st.permutations(range(5)), st.permutations([*BY_SEED]), st.lists(st.integers(), min_size=5))
def test_the_order_of_seeds_and_rows_changes_nothing(seeds, rows, others):
    permuted = {row: {seed: BY_SEED[row][seed] for seed in seeds} for row in rows}
    renamed = {row: {seeds[seed]: value for seed, value in BY_SEED[row].items()} for row in rows}
    for larger in (True, False):
        expected = differences_from_best(BY_SEED, larger=larger)
        assert differences_from_best(permuted, larger=larger) == expected
        assert differences_from_best(renamed, larger=larger) == expected
    values = [other * 0.1 for other in others]
    shuffled = [values[seed] for seed in seeds] + values[5:]
    assert mean(shuffled) == mean(values) and deviation(shuffled) == deviation(values)


@pytest.mark.parametrize("seeds", [5, *(pytest.param(n, marks=pytest.mark.full) for n in (10, 20))])
@pytest.mark.parametrize(("kind", "rows"), [("equal", 2), ("unequal", 6), ("collapsing", 6)])
def test_rows_of_equal_means_are_told_apart_in_at_most_a_twentieth_of_cases(seeds, rows, kind):
    """2,000 tables of equal means, whose rows share what a seed does to all of them.

    Rows are normal, or collapse alike with one seed in six.
    """
    draws, wrong = np.random.default_rng(seeds), 0
    deviations = np.arange(1.0, rows + 1) if kind == "unequal" else np.ones(rows)
    for _ in range(2_000):
        values = draws.normal(size=(rows, seeds)) * deviations[:, None] + draws.normal(size=seeds)
        if kind == "collapsing":
            values -= 50.0 * (draws.random((rows, seeds)) < 1 / 6)
        table = {str(row): dict(enumerate(each)) for row, each in enumerate(values.tolist())}
        found = differences_from_best(table, larger=True).values()
        wrong += any(each is not None and each.is_separated for each in found)
    assert wrong / 2_000 <= LEVEL + 0.005
