"""The proportions partition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from raysim.samples.data import Split
from raysim.workloads.partitions.proportions import Proportions
from tests.workloads.partitions.conftest import balanced, counts_of


def labelled(*sizes: int) -> Split:
    y = np.random.default_rng(2).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Split(np.zeros((len(y), 1)), y)


APTOS = labelled(7348, 696, 1507, 249, 202)  # as its grades are distributed


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(20, 200), min_size=1, max_size=5),
    alpha=st.sampled_from([0.1, 1.0, 1e6]),
    clients=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_clients_are_equal_in_size_to_one_sample_a_class_and_use_every_sample(
    sizes: list[int], alpha: float, clients: int, seed: int
) -> None:
    indices = Proportions(alpha=alpha).split(labelled(*sizes), clients, seed)
    assert np.abs(indices.sizes - sum(sizes) / clients).max() <= len(sizes)
    assert np.array_equal(np.sort(indices.indices), np.arange(sum(sizes)))


def test_two_equal_classes_in_random_proportions() -> None:
    # A client's weights are (g, 1-g), g uniform on [0, 1]; the scaling acts on the odds g/(1-g) of
    # all clients alike, and hardly at all for 500 of them: mean 1/2, variance 1/12.
    data = labelled(25_000, 25_000)
    counts = counts_of(data, Proportions().split(data, 500, 0), 2)
    fraction = counts[:, 0] / counts.sum(axis=1)
    assert fraction.mean() == pytest.approx(0.5, abs=0.01)
    assert fraction.var() == pytest.approx(1 / 12, rel=0.1)


def test_odds_between_classes_are_those_drawn() -> None:
    # Scaling keeps the ratio of two clients' odds: with alpha=1 the logarithm of g/(1-g) is
    # logistic, of variance pi^2/3, however unequal the classes are.
    data = labelled(800_000, 200_000)
    counts = counts_of(data, Proportions().split(data, 400, 1), 2)
    odds = np.log((counts[:, 0] + 0.5) / (counts[:, 1] + 0.5))
    assert odds.var() == pytest.approx(np.pi**2 / 3, rel=0.15)


def test_first_and_last_clients_draw_alike() -> None:
    counts = counts_of(APTOS, Proportions().split(APTOS, 100, 0), 5)
    halves = counts[:50].sum(axis=0) / counts.sum(axis=0)
    assert (np.abs(halves - 0.5) < 0.15).all()
    assert (counts / counts.sum(axis=1, keepdims=True)).std(axis=0).min() > 0.02


def test_alpha_sets_how_far_clients_differ() -> None:
    data = balanced(1000)
    largest = [
        counts_of(data, Proportions(alpha=alpha).split(data, 20, 0)).max(axis=1).mean() / 500
        for alpha in (0.1, 1.0, 1e6)
    ]
    assert largest[0] > 0.5 > largest[1] > 0.2 > largest[2]


@pytest.mark.parametrize("alpha", [0.09, 1e7])
def test_alpha_out_of_range(alpha: float) -> None:
    with pytest.raises(ValidationError):
        Proportions(alpha=alpha)
