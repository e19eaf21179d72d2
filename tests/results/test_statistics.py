"""Statistics over seeds, on samples whose answer is known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from raysim.results.statistics import best_rows, deviation, is_separated, mean


def test_mean_and_sample_deviation():
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert deviation([1.0, 2.0, 6.0]) == pytest.approx(7**0.5)  # (4 + 1 + 9) / 2
    assert deviation([1.0]) is None


@pytest.mark.parametrize(
    ("differences", "separated"),
    {
        (1.0, 2.0, 3.0, 4.0, 5.0): True,  # every resample has a mean above 0
        (-1.0, -2.0, -3.0, -4.0, -5.0): True,
        (-2.0, -1.0, 0.0, 1.0, 2.0): False,
        (1.0, 1.0, 1.0, 1.0, 1.0): True,
        (0.0, 0.0, 0.0, 0.0, 0.0): False,
        (-0.5, 1.0, 1.0, 1.0, 1.0): True,  # 0.7% of the resamples have a mean below 0
        (-3.0, 1.0, 1.0, 1.0, 1.0): False,
    }.items(),
)
def test_separation_is_that_of_all_resamples(differences, separated):
    """Five pairs have 3,125 resamples; their quantiles are taken one by one."""
    means = np.mean([*product(differences, repeat=5)], axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    assert (low > 0 or high < 0) == separated
    assert is_separated(differences, (0.0,) * 5) == separated
    assert is_separated((0.0,) * 5, differences) == separated


BY_SEED = {
    "best": dict(enumerate([0.90, 0.92, 0.91, 0.93, 0.94])),
    "alike": dict(enumerate([0.91, 0.91, 0.92, 0.92, 0.93])),
    "worse": dict(enumerate([0.80, 0.81, 0.82, 0.80, 0.81])),
    "worse, by pairs": dict(enumerate([0.89, 0.91, 0.90, 0.92, 0.93])),
}


def test_rows_that_are_not_separated_from_the_best():
    assert best_rows(BY_SEED, larger=True) == {"best", "alike"}
    assert best_rows(BY_SEED, larger=False) == {"worse"}
    for rows in ({}, {"a": {}}, {"a": {}, "b": {}}, {"a": {0: 1.0}}):
        assert best_rows(rows, larger=True) == frozenset()


def test_rows_of_fewer_seeds_than_others_are_not_compared():
    """Of seed 0 alone, `alike` is the best row."""
    one = {"only": {0: 0.60}}
    for rows in ({**BY_SEED, **one}, {**one, **BY_SEED}, {**BY_SEED, "only": {0: 1.0, 7: 1.0}}):
        assert best_rows(rows, larger=True) == {"best", "alike"}
    longer = {**BY_SEED, "best": BY_SEED["best"] | {5: 0.1}}
    assert best_rows(longer, larger=True) == frozenset()


def test_no_row_is_the_best_where_those_of_the_most_seeds_have_others():
    lucky = {"lucky": {0: 0.90, 1: 0.92, 7: 1.0}, "better": {0: 0.91, 1: 0.92, 8: 0.5}}
    assert best_rows(lucky, larger=True) == frozenset()
    assert best_rows({"a": {0: 1.0}, "b": {1: 2.0}}, larger=True) == frozenset()


def test_below_five_seeds_the_best_alone_and_its_equals():
    few = {row: {seed: values[seed] for seed in range(4)} for row, values in BY_SEED.items()}
    few["alike"] = dict(few["best"])
    few["shuffled"] = dict(enumerate(reversed(few["best"].values())))
    assert best_rows(few, larger=True) == {"best", "alike", "shuffled"}


@hypothesis_settings(max_examples=20)
@given(st.permutations(range(5)), st.permutations([*BY_SEED]), st.lists(st.integers(), min_size=5))
def test_the_order_of_seeds_and_rows_changes_nothing(seeds, rows, others):
    permuted = {row: {seed: BY_SEED[row][seed] for seed in seeds} for row in rows}
    renamed = {row: {seeds[seed]: value for seed, value in BY_SEED[row].items()} for row in rows}
    for larger in (True, False):
        expected = best_rows(BY_SEED, larger=larger)
        assert best_rows(permuted, larger=larger) == best_rows(renamed, larger=larger) == expected
    values = [other * 0.1 for other in others]
    shuffled = [values[seed] for seed in seeds] + values[5:]
    assert mean(shuffled) == mean(values) and deviation(shuffled) == deviation(values)
