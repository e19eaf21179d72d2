"""Cuts of clients' samples into training and test samples, and clients that are kept out."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.samples.client_indices import DrawnIndices, ListedIndices, SharingIndices
from raysim.samples.local_cut import (
    CutIndices,
    LocalCut,
    have_common_samples,
    with_cut,
    without_cut,
)
from raysim.samples.participants import participants_of

LABELS = np.array([0] * 10 + [1] * 6 + [2])


def cut_of(labels: list[int], fraction: float, seed: int, *, stratified: bool) -> CutIndices:
    classes = np.array(labels, dtype=np.uint8) if stratified else None
    everything = ListedIndices.of([np.arange(len(labels))])
    return CutIndices(everything, LocalCut(fraction, seed, classes))


@pytest.mark.parametrize("seed", range(5))
def test_a_class_has_its_share_by_hand(seed):
    """4 of 17: shares 2.35, 1.41 and 0.24, so that the second class has the one that is left."""
    cut = cut_of(LABELS.tolist(), 0.25, seed, stratified=True)
    assert np.bincount(LABELS[cut.tests[0]], minlength=3).tolist() == [2, 2, 0]
    assert cut.sizes.tolist() == [13] and cut.tests.sizes.tolist() == [4]


def test_equal_remainders_have_lots():
    """One of 2 + 2 samples: either class is tested, over the seeds."""
    cuts = [cut_of([0, 0, 1, 1], 0.25, seed, stratified=True) for seed in range(20)]
    assert {int(cut.tests[0][0]) for cut in cuts} == {0, 1, 2, 3}


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
    st.booleans(),
)
def test_cuts_are_whole_and_fair(labels, fraction, seed, stratified):
    cut = cut_of(labels, fraction, seed, stratified=stratified)
    kept, tested, n = cut[0], cut.tests[0], len(labels)
    assert sorted([*kept, *tested]) == [*range(n)]
    assert (np.diff(kept) > 0).all() and (np.diff(tested) > 0).all()
    expected = min(max(round(fraction * n), 1), n - 1)
    assert len(tested) == cut.tests.sizes[0] == expected and len(kept) == cut.sizes[0]
    if stratified:
        for of_class in {*labels}:
            held = labels.count(of_class)
            share = Fraction(expected * held, n)
            found = sum(labels[row] == of_class for row in tested)
            assert int(share) <= found <= -int(-share // 1)
    else:
        other = cut_of(labels[::-1], fraction, seed, stratified=False)
        assert other.tests[0].tolist() == tested.tolist()  # labels have no part in it


@pytest.mark.parametrize("classes", [None, LABELS])
def test_clients_without_two_samples_have_no_test(classes):
    cut = LocalCut(0.9, 0, classes)
    assert cut.test_sizes(np.array([0, 1, 2, 3])).tolist() == [0, 0, 1, 2]
    for samples in ([], [4], [4, 5], [4, 5, 6]):
        kept, tested = cut.divide(0, np.array(samples, dtype=np.int64))
        assert sorted([*kept, *tested]) == samples
        assert len(tested) == max(len(samples) - 1, 0)


def test_a_cut_is_drawn_by_seed_and_client():
    one, other = (LocalCut(0.5, seed).divide(7, np.arange(40))[1] for seed in (0, 1))
    third = LocalCut(0.5, 0).divide(8, np.arange(40))[1]
    assert not np.array_equal(one, other) and not np.array_equal(one, third)


def test_shared_samples_are_not_cut():
    own = ListedIndices.of([np.arange(8), np.arange(8, 12)])
    sharing = SharingIndices(own, np.arange(12, 15), 2, 0)
    kept, tests = with_cut(sharing, LocalCut(0.25, 0))
    assert kept.sizes.tolist() == [6 + 2, 3 + 2] and tests.sizes.tolist() == [2, 1]
    assert {*kept[0], *tests[0]} >= {*range(8)} and (kept[0][-2:] >= 12).all()
    assert without_cut(kept).own is own and without_cut(own) is own


@given(st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=6), min_size=1, max_size=5))
def test_a_sample_that_is_there_twice_is_found(held):
    per_client = [np.array(rows) for rows in held]
    everything = [row for rows in held for row in rows]
    drawn = DrawnIndices(len(held), np.array([*map(len, held)]), per_client.__getitem__)
    for indices in (ListedIndices.of(per_client), drawn):
        assert have_common_samples(indices, 20) == (len({*everything}) < len(everything))


def test_shared_samples_are_nobodys():
    own = ListedIndices.of([np.arange(8), np.arange(8, 12)])
    assert not have_common_samples(SharingIndices(own, np.arange(12, 15), 2, 0), 15)


def test_of_a_million_clients_none_is_drawn_before_it_is_asked():
    def draw(client: int) -> np.ndarray:
        asked.append(client)
        return np.arange(client, client + 8)

    asked: list[int] = []
    kept, tests = with_cut(DrawnIndices(10**6, 8, draw), LocalCut(0.25, 0))
    assert kept.sizes.strides == (0,) and int(kept.sizes[-1]) == 6 and not asked
    assert len(tests[999_999]) == 2 and asked == [999_999]
    assert have_common_samples(DrawnIndices(10**6, 8, draw), 8 * 10**6 - 1)
    assert asked == [999_999]  # more samples than there are


@given(st.integers(2, 50), st.floats(0.01, 0.99), st.integers(0, 3))
def test_participants_are_all_others_than_the_new_clients(clients, share, seed):
    found = participants_of(clients, share, seed)
    assert len(found.new) == min(max(round(share * clients), 1), clients - 1)
    assert sorted([*found.new, *found.numbers]) == [*range(clients)]
    assert len(found) == len(found.numbers) and found.listed == tuple(found.numbers.tolist())
    ranks = np.arange(len(found))[::-1]
    assert found.ranks(found.at(ranks)).tolist() == ranks.tolist()
    assert found.of(np.arange(clients)).tolist() == found.numbers.tolist()
    assert found.first_new(found.listed) is None
    assert found.first_new([int(found.numbers[0]), int(found.new[-1])]) == found.new[-1]
