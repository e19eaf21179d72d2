"""The split_classes partition."""

import numpy as np
import pytest

from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.partitions.split_classes import SplitClasses
from tests.workloads.partitions.conftest import balanced, counts_of


def test_two_clients_hold_the_even_and_the_odd_classes() -> None:
    data = balanced(500)
    indices = SplitClasses().split(data, 2, 0)
    assert np.array_equal(indices[0], np.flatnonzero(data.y % 2 == 0))
    assert np.array_equal(indices[1], np.flatnonzero(data.y % 2 == 1))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("clients", [1, 2, 5, 10])
def test_classes_are_divided_equally_and_used_whole(clients: int, shuffle: bool) -> None:
    data = balanced(30)
    counts = counts_of(data, SplitClasses(shuffle=shuffle).split(data, clients, 3))
    assert set(np.unique(counts)) <= {0, 30}
    assert np.array_equal((counts > 0).sum(axis=1), np.full(clients, 10 // clients))
    assert np.array_equal(counts.sum(axis=0), np.full(10, 30))


def test_shuffled_classes_depend_on_the_seed() -> None:
    data = balanced(3)
    groups = [
        tuple(np.unique(data.y[SplitClasses(shuffle=True).split(data, 2, seed)[0]]))
        for seed in (0, 0, 1, 2, 3)
    ]
    assert groups[0] == groups[1]
    assert len(set(groups)) == 4


def test_labels_with_gaps_are_classes_by_rank() -> None:
    y = np.array([3, 9, 3, 40])
    with pytest.raises(DataError, match="clients=2: 3 classes cannot be dealt equally"):
        SplitClasses().split(Split(np.zeros((4, 1)), y), 2, 0)
    indices = SplitClasses().split(Split(np.zeros((4, 1)), y), 3, 0)
    assert [indices[client].tolist() for client in range(3)] == [[0, 2], [1], [3]]


def test_more_clients_than_classes_is_refused() -> None:
    expected = "clients=20: 10 classes cannot be dealt equally; clients must divide 10"
    with pytest.raises(DataError, match=expected):
        SplitClasses().split(balanced(5), 20, 0)
