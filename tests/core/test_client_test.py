"""Class counts of clients, and each client's own test share."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.client_test import client_test
from raysim.core.counts import class_counts
from raysim.core.data import ListedIndices
from raysim.core.errors import DataError

TEST = np.random.default_rng(0).permutation(np.repeat(np.arange(3), [100, 50, 200]))


def counts(train: list[list[int]], ratio: float) -> list[list[int]]:
    """Draw the shares and count what is in them."""
    shares = client_test(np.array(train), TEST, ratio, 0)
    drawn = [shares[client] for client in range(len(train))]
    assert all(len(set(held)) == len(held) for held in drawn)
    assert shares.sizes.tolist() == [len(held) for held in drawn]
    return [np.bincount(TEST[held], minlength=3).tolist() for held in drawn]


def test_counts_by_hand() -> None:
    train = [
        [300, 100, 0],  # 40 samples, 3 to 1
        [0, 0, 600],  # 60 of one class
        [10, 10, 10],  # 3 samples
        [2, 0, 1],  # 0.3 samples, hence one
        [7, 7, 9],  # 2.3 samples, hence 2 of 0.61, 0.61 and 0.78: the third and the first class
    ]
    assert counts(train, 0.1) == [[30, 10, 0], [0, 0, 60], [1, 1, 1], [1, 0, 0], [1, 0, 1]]


def test_a_share_ends_where_a_class_of_the_test_set_does() -> None:
    # 100, 50 and 200 there: 60% of class 1 allows 50/0.6 = 83.3 samples, 33.2 and 49.8 a class.
    assert counts([[400, 600, 0], [0, 700, 0], [0, 0, 1]], 1.0) == [
        [33, 50, 0],
        [0, 50, 0],
        [0, 0, 1],
    ]


def test_the_whole_test_set_for_a_client_that_holds_all_training_data() -> None:
    assert counts([[200, 100, 400]], 0.5) == [[100, 50, 200]]


@given(
    train=st.lists(
        st.lists(st.integers(0, 300), min_size=3, max_size=3).filter(any), min_size=1, max_size=4
    ),
    ratio=st.floats(0.001, 3),
)
def test_shares_are_as_near_to_the_proportions_as_whole_numbers_can_be(
    train: list[list[int]], ratio: float
) -> None:
    there = np.bincount(TEST)
    for held, got in zip(np.array(train), np.array(counts(train, ratio)), strict=True):
        size, exact = got.sum(), got.sum() * held / held.sum()
        assert (got <= there).all()
        around = [{int(np.floor(value)), int(np.ceil(value))} for value in exact]
        errors = [np.abs(np.array(c) - exact).sum() for c in product(*around) if sum(c) == size]
        assert np.abs(got - exact).sum() == pytest.approx(min(errors))
        wanted = max(round(ratio * held.sum()), 1)
        assert size <= wanted
        if size < wanted:  # one more would ask a class for more than there is
            assert ((size + 1) * held / held.sum() > there).any()


def test_a_share_depends_on_seed_and_client_alone() -> None:
    train = np.array([[30, 30, 30]] * 5)
    few, many, other = (
        client_test(t, TEST, 0.5, seed) for t, seed in ((train[:3], 0), (train, 0), (train, 1))
    )
    backwards = [few[client].tolist() for client in (2, 1, 0)]
    assert backwards[::-1] == [many[client].tolist() for client in range(3)]
    assert many[0].tolist() != many[1].tolist()
    assert many[0].tolist() != other[0].tolist()


def test_a_class_that_the_test_set_lacks_is_refused() -> None:
    with pytest.raises(DataError, match="class 3: clients train on it; the test set has none"):
        client_test(np.array([[1, 0, 0, 0], [0, 0, 0, 2]]), TEST, 0.1, 0)
    assert client_test(np.array([[1, 0, 0, 0]]), TEST, 0.1, 0).sizes.tolist() == [1]


def test_class_counts_of_some_clients() -> None:
    shares = ListedIndices.of([np.array([0, 3]), np.array([1]), np.array([2, 4, 5])])
    labels = np.array([1, 0, 2, 1, 2, 0])
    assert class_counts(shares, labels, 4, np.array([2, 0])).tolist() == [
        [1, 0, 2, 0],
        [0, 2, 0, 0],
    ]
