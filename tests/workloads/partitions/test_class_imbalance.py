"""The class_imbalance partition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.partitions.class_imbalance import ClassImbalance
from tests.workloads.partitions.conftest import balanced, counts_of


@pytest.mark.parametrize("clients", [5, 10])
def test_totals_and_class_proportions_are_unequal(clients: int) -> None:
    data = balanced(5000)
    indices = ClassImbalance().split(data, clients, 0)
    assert np.array_equal(np.sort(indices.indices), np.arange(50_000))
    counts = counts_of(data, indices)
    assert indices.sizes.max() > 1.2 * indices.sizes.min()
    # Of Dir_K(0.5), the largest fraction of a class is 2.4 to 3.8 times the mean for K of 5 to 10.
    assert (counts.max(axis=0) > 1.5 * counts.mean(axis=0)).all()


@settings(max_examples=50)
@given(clients=st.integers(1, 10), classes=st.integers(1, 8), seed=st.integers(0, 2**32))
def test_a_client_with_its_part_gets_nothing_of_later_classes(
    clients: int, classes: int, seed: int
) -> None:
    y = np.repeat(np.arange(classes), 120)
    data = Split(np.zeros((len(y), 1)), y)
    partition = ClassImbalance(alpha=2.0, minimum=1)
    counts = counts_of(data, partition.split(data, clients, seed), classes)
    before = np.cumsum(counts, axis=1) - counts  # held before each class [K, C]
    assert (counts[before >= len(y) / clients] == 0).all()


def test_class_proportions_of_the_first_class_have_the_dirichlet_variance() -> None:
    # Nobody has its part yet: Var(p_k) = (1/K)(1 - 1/K) / (K a + 1), over 300 seeds.
    y = np.repeat(np.arange(2), 2000)
    data = Split(np.zeros((len(y), 1)), y)
    indices = [ClassImbalance(minimum=1).split(data, 3, seed) for seed in range(300)]
    first = np.array([counts_of(data, held, 2)[:, 0] for held in indices]) / 2000
    assert np.var(first) == pytest.approx(1 / 3 * 2 / 3 / 2.5, rel=0.15)


def test_ten_samples_a_client_by_default() -> None:
    for seed in range(20):
        assert ClassImbalance().split(balanced(30), 10, seed).sizes.min() >= 10
    expected = r"clients=31, partition\.minimum=10: no division of 300 samples"
    with pytest.raises(DataError, match=expected):
        ClassImbalance().split(balanced(30), 31, 0)
