"""The classes partition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.partitions.classes import Classes
from tests.workloads.partitions.conftest import balanced, counts_of


def test_femnist_star_has_20_of_26_classes_a_client() -> None:
    data = balanced(1000, 26)
    indices = Classes(per_client=20).split(data, 100, 0)
    counts = counts_of(data, indices, 26)
    assert set((counts > 0).sum(axis=1)) == {20}
    # 100 * 20 / 26 = 76.9 holders of 1000 samples: 12.99 each.
    assert set((counts > 0).sum(axis=0)) == {76, 77}
    assert set(np.unique(counts)) == {0, 12, 13, 14}
    assert np.array_equal(np.sort(indices.indices), np.arange(26_000))


def test_two_of_ten_classes_are_equal_halves_of_equal_clients() -> None:
    data = balanced(5000)
    counts = counts_of(data, Classes().split(data, 100, 0))
    assert set((counts > 0).sum(axis=1)) == {2}
    assert set(np.unique(counts)) == {0, 250}
    pairs = {tuple(np.flatnonzero(held)) for held in counts}
    assert len(pairs) > 20  # of 45, drawn at random


def test_a_class_is_divided_at_random() -> None:
    """Holders who took its samples in turns would each hold every n-th."""
    data = balanced(60, 2)
    shares = Classes(per_client=2).split(data, 3, 0)
    for label in range(2):
        rank = {row: place for place, row in enumerate(np.flatnonzero(data.y == label))}
        for client in range(3):
            held = [rank[row] for row in shares[client].tolist() if row in rank]
            assert len(set(np.diff(held))) > 1


def test_a_sample_too_many_goes_to_a_holder_drawn_at_random() -> None:
    data = balanced(7, 1)
    parts = [Classes(per_client=1).split(data, 3, seed) for seed in range(20)]
    assert {int(np.argmax([len(part[k]) for k in range(3)])) for part in parts} == {0, 1, 2}


def test_classes_in_order_with_random_shares_are_pfllib_s_pathological_clients() -> None:
    """20 clients of two of ten classes: four hold 0 and 1, the next four 2 and 3, and so on."""
    data = balanced(7000)
    partition = Classes(per_client=2, assigned="in_order", shares="random")
    counts = counts_of(data, partition.split(data, 20, 0))
    held = [tuple(np.flatnonzero(of_client)) for of_client in counts]
    assert held == [(pair, pair + 1) for pair in range(0, 10, 2) for _ in range(4)]
    for label in range(10):
        assert (counts[:, label] > 0).sum() == 4 and counts[:, label].sum() == 7000
    rest = [int(np.argmax(counts[:, label])) for label in range(10)]
    assert rest == [3, 3, 7, 7, 11, 11, 15, 15, 19, 19]  # the last client of each four
    # Three of a class's holders draw from 175 to 1749, one takes the rest: at least 1753.
    parts = np.sort(counts[counts > 0].reshape(-1))
    assert (parts >= 1753).sum() == 10 and parts[0] >= 175 and len({*parts.tolist()}) > 30


def test_classes_in_order_fill_the_first_clients() -> None:
    data = balanced(12, 4)
    counts = counts_of(data, Classes(per_client=3, assigned="in_order").split(data, 5, 0), 4)
    assert counts.tolist() == [[3, 3, 3, 0]] * 4 + [[0, 0, 0, 12]]


@settings(max_examples=50)
@given(data=st.data(), classes=st.integers(1, 12), clients=st.integers(1, 12))
def test_holders_are_balanced_and_divide_a_class_equally(
    data: st.DataObject, classes: int, clients: int
) -> None:
    per_client = data.draw(st.integers(1, classes))
    sizes = data.draw(st.lists(st.integers(12, 40), min_size=classes, max_size=classes))
    y = np.repeat(np.arange(classes), sizes)
    split = Split(np.zeros((len(y), 1)), y)
    indices = Classes(per_client=per_client).split(split, clients, data.draw(st.integers(0, 99)))
    counts = counts_of(split, indices, classes)
    assert set((counts > 0).sum(axis=1)) == {per_client}
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    assert np.array_equal(counts.sum(axis=0), np.where(holders > 0, sizes, 0))
    for column in counts.T[holders > 0]:
        assert np.ptp(column[column > 0]) <= 1


def test_classes_that_nobody_holds_are_left_out() -> None:
    data = balanced(6)
    indices = Classes(per_client=2).split(data, 3, 1)
    assert sorted(counts_of(data, indices).sum(axis=0)) == [0] * 4 + [6] * 6


def test_more_classes_than_there_are_is_refused() -> None:
    expected = r"partition\.per_client=11: the dataset has 10 classes; a client holds at most all"
    with pytest.raises(DataError, match=expected):
        Classes(per_client=11).split(balanced(5), 5, 0)
    assert Classes(per_client=10).split(balanced(5), 5, 0).sizes.tolist() == [10] * 5


def test_a_class_with_fewer_samples_than_holders_is_refused() -> None:
    y = np.array([0] * 20 + [1] * 3)
    expected = r"partition\.per_client=2, clients=4: class 1 has 3 samples for 4 clients; lower"
    with pytest.raises(DataError, match=expected):
        Classes(per_client=2).split(Split(np.zeros((23, 1)), y), 4, 0)
