"""Client indices: what is held out of training, drawn for tests, and counted by class."""

from __future__ import annotations

import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.errors import DataError
from raysim.samples.client_indices import (
    DrawnIndices,
    Holdout,
    Indices,
    ListedIndices,
    class_counts,
    client_test_indices,
)

HELD = {
    0.0: {1: 0, 2: 0, 600: 0},
    0.1: {1: 0, 2: 1, 14: 1, 15: 2, 16: 2, 25: 2, 600: 60},  # 2.5 is rounded to even
    0.5: {1: 0, 2: 1, 3: 2, 5: 2, 6: 3},
    0.99: {1: 0, 2: 1, 3: 2, 100: 99},
    0.001: {1: 0, 2: 1, 600: 1, 3000: 3},
}


def never(client: int) -> Indices:
    raise AssertionError(client)


@pytest.mark.parametrize("fraction", HELD)
def test_training_sizes_by_hand(fraction: float) -> None:
    sizes, held = zip(*HELD[fraction].items(), strict=True)
    holdout = Holdout(fraction)
    expected = [n - m for n, m in zip(sizes, held, strict=True)]
    assert holdout.training_sizes(np.array(sizes)).tolist() == expected
    for client, (n, m) in enumerate(HELD[fraction].items()):
        assert [len(positions) for positions in holdout.divide(client, n)] == [n - m, m]


@given(n=st.integers(1, 300), fraction=st.floats(0, 0.999), client=st.integers(0, 10**9))
def test_a_client_is_cut_in_two(n: int, fraction: float, client: int) -> None:
    holdout = Holdout(fraction, seed=4)
    kept, held = holdout.divide(client, n)
    assert sorted([*kept, *held]) == list(range(n))
    assert kept.tolist() == sorted(kept) and held.tolist() == sorted(held)
    assert len(kept) == holdout.training_sizes(np.array([n]))[0] >= 1
    assert abs(len(held) - fraction * n) <= 1


def test_what_is_held_out_depends_on_seed_and_client_alone() -> None:
    def held(client: int, seed: int = 0) -> list[int]:
        return Holdout(0.2, seed).divide(client, 50)[1].tolist()

    backwards = [held(client) for client in (1, 0)]
    assert backwards == [held(1), held(0)]
    assert len({tuple(held(0)), tuple(held(1)), tuple(held(0, seed=1))}) == 3


def test_every_sample_is_held_out_alike_often() -> None:
    holdout = Holdout(0.3)
    times = np.bincount(np.concatenate([holdout.divide(k, 10)[1] for k in range(2000)]))
    assert times.sum() == 6000
    assert np.abs(times - 600).max() < 100  # five standard deviations


@pytest.mark.parametrize("fraction", [0.0, 0.1])
def test_a_lazy_population_stays_lazy(fraction: float) -> None:
    sizes = Holdout(fraction).training_sizes(DrawnIndices(10**9, 60, never).sizes)
    assert sizes.shape == (10**9,) and sizes.strides == (0,)
    assert sizes[10**9 - 1] == (54 if fraction else 60)


TEST = np.random.default_rng(0).permutation(np.repeat(np.arange(3), [100, 50, 200]))


def drawn_counts(train: list[list[int]], ratio: float) -> list[list[int]]:
    """Draw the test samples and count their classes."""
    indices = client_test_indices(np.array(train), TEST, ratio, 0)
    drawn = [indices[client] for client in range(len(train))]
    assert all(len(set(held)) == len(held) for held in drawn)
    assert indices.sizes.tolist() == [len(held) for held in drawn]
    return [np.bincount(TEST[held], minlength=3).tolist() for held in drawn]


def test_client_test_indices_by_hand() -> None:
    train = [
        [300, 100, 0],  # 40 samples, 3 to 1
        [0, 0, 600],  # 60 of one class
        [10, 10, 10],  # 3 samples
        [2, 0, 1],  # 0.3 samples, hence one
        [7, 7, 9],  # 2.3 samples, hence 2 of 0.61, 0.61 and 0.78: the third and the first class
    ]
    assert drawn_counts(train, 0.1) == [[30, 10, 0], [0, 0, 60], [1, 1, 1], [1, 0, 0], [1, 0, 1]]


def test_a_draw_ends_where_a_class_of_the_test_set_does() -> None:
    # 100, 50 and 200 there: 60% of class 1 allows 50/0.6 = 83.3 samples, 33.2 and 49.8 a class.
    assert drawn_counts([[400, 600, 0], [0, 700, 0], [0, 0, 1]], 1.0) == [
        [33, 50, 0],
        [0, 50, 0],
        [0, 0, 1],
    ]


def test_the_whole_test_set_for_a_client_that_holds_all_training_data() -> None:
    assert drawn_counts([[200, 100, 400]], 0.5) == [[100, 50, 200]]


@given(
    train=st.lists(
        st.lists(st.integers(0, 300), min_size=3, max_size=3).filter(any), min_size=1, max_size=4
    ),
    ratio=st.floats(0.001, 3),
)
def test_draws_are_as_near_to_the_proportions_as_whole_numbers_can_be(
    train: list[list[int]], ratio: float
) -> None:
    there = np.bincount(TEST)
    for held, got in zip(np.array(train), np.array(drawn_counts(train, ratio)), strict=True):
        size, exact = got.sum(), got.sum() * held / held.sum()
        assert (got <= there).all()
        around = [{int(np.floor(value)), int(np.ceil(value))} for value in exact]
        errors = [np.abs(np.array(c) - exact).sum() for c in product(*around) if sum(c) == size]
        assert np.abs(got - exact).sum() == pytest.approx(min(errors))
        wanted = max(round(ratio * held.sum()), 1)
        assert size <= wanted
        if size < wanted:  # one more would ask a class for more than there is
            assert ((size + 1) * held / held.sum() > there).any()


def test_a_draw_depends_on_seed_and_client_alone() -> None:
    train = np.array([[30, 30, 30]] * 5)
    few, many, other = (
        client_test_indices(t, TEST, 0.5, seed)
        for t, seed in ((train[:3], 0), (train, 0), (train, 1))
    )
    backwards = [few[client].tolist() for client in (2, 1, 0)]
    assert backwards[::-1] == [many[client].tolist() for client in range(3)]
    assert many[0].tolist() != many[1].tolist()
    assert many[0].tolist() != other[0].tolist()


def test_a_class_that_the_test_set_lacks_is_refused() -> None:
    with pytest.raises(DataError, match="class 3: clients train on it, but the test set lacks it"):
        client_test_indices(np.array([[1, 0, 0, 0], [0, 0, 0, 2]]), TEST, 0.1, 0)
    assert client_test_indices(np.array([[1, 0, 0, 0]]), TEST, 0.1, 0).sizes.tolist() == [1]


def test_class_counts_of_some_clients() -> None:
    indices = ListedIndices.of([np.array([0, 3]), np.array([1]), np.array([2, 4, 5])])
    labels = np.array([1, 0, 2, 1, 2, 0])
    assert class_counts(indices, labels, 4, np.array([2, 0])).tolist() == [
        [1, 0, 2, 0],
        [0, 2, 0, 0],
    ]


def test_drawn_indices_end_where_their_clients_do() -> None:
    indices = DrawnIndices(3, 2, lambda client: np.array([client, client + 1]))
    assert indices[2].tolist() == [2, 3] and indices.sizes.tolist() == [2, 2, 2]
    for client in (-1, 3):
        with pytest.raises(IndexError, match=f"client {client}: must be in 0..2"):
            indices[client]


def test_a_drawn_population_travels_without_its_clients() -> None:
    assert len(pickle.dumps(DrawnIndices(10**9, 60, never))) < 300


def test_labels_that_are_no_class_numbers_are_refused() -> None:
    indices, first = ListedIndices.of([np.array([0, 1])]), np.array([0])
    for labels in (np.array([0.5, 1.0]), np.array([[0], [1]])):
        with pytest.raises(DataError, match="are not class numbers to count"):
            class_counts(indices, labels, 2, first)
