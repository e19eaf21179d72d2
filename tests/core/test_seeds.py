"""Random streams and cohorts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raysim.core.seeds import sample_cohort, stream, torch_seed


def test_streams_depend_on_every_part_of_the_key():
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 0, 1), (0, "a", 1, 0)]
    drawn = {tuple(stream(*key).integers(0, 2**62, 2)) for key in keys}
    assert len(drawn) == len(keys)
    assert len({torch_seed(*key) for key in keys}) == len(keys)


def test_a_stream_is_the_same_again():
    assert stream(3, "x", 5).random() == stream(3, "x", 5).random()


@given(st.integers(0, 5), st.integers(-3, 50), st.integers(1, 2000), st.data())
def test_cohort_is_distinct_ascending_and_repeatable(seed, number, clients, data):
    size = data.draw(st.integers(1, clients))
    cohort = sample_cohort(stream(seed, "cohort", number), clients, size)
    assert len(set(cohort)) == size
    assert cohort == sorted(cohort)
    assert cohort[0] >= 0 and cohort[-1] < clients
    assert cohort == sample_cohort(stream(seed, "cohort", number), clients, size)


def test_cohorts_are_uniform():
    counts = Counter(
        c for number in range(3000) for c in sample_cohort(stream(1, "cohort", number), 20, 4)
    )
    expected = 3000 * 4 / 20
    statistic = sum((counts[c] - expected) ** 2 / expected for c in range(20))
    assert statistic < stats.chi2.ppf(0.9999, 19)
