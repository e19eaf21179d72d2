"""What every partition promises."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workloads  # noqa: F401 - registers names
from raysim.core.components import Component
from raysim.core.data import PARTITIONS, Partition, Split
from raysim.core.errors import DataError
from raysim.core.seeds import sample_cohort

NAMES = sorted({"iid", "shards", "dirichlet", "resample"})
COVERING = [PARTITIONS.get(name)() for name in ("iid", "shards", "dirichlet")]
ALL = [*COVERING, PARTITIONS.get("resample").model_validate({"samples": 5})]

MakeSplit = Callable[..., Split]


def name(partition: Component) -> str:
    return partition.title


@st.composite
def populations(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Draw (samples, classes, clients, seed) that any partition can satisfy."""
    clients = draw(st.integers(1, 12))
    samples = draw(st.integers(40 * clients, 1000))
    return samples, draw(st.integers(1, 10)), clients, draw(st.integers(0, 2**40))


def test_the_names_are_registered() -> None:
    assert set(NAMES) <= set(PARTITIONS)
    assert [partition.title for partition in ALL] == ["iid", "shards", "dirichlet", "resample"]


@pytest.mark.parametrize("partition", ALL, ids=name)
@settings(max_examples=25)
@given(population=populations())
def test_sizes_match_and_no_client_holds_a_sample_twice(
    partition: Partition, population: tuple[int, int, int, int], make_split: MakeSplit
) -> None:
    samples, classes, clients, seed = population
    shares = partition.split(make_split(samples, classes, seed), clients, seed)
    assert shares.sizes.shape == (clients,)
    assert shares.sizes.min() >= 1
    for client in range(clients):
        held = shares[client]
        assert held.dtype == np.int64
        assert len(held) == shares.sizes[client]
        assert len(np.unique(held)) == len(held)
        assert held.min() >= 0
        assert held.max() < samples


@pytest.mark.parametrize("partition", COVERING, ids=name)
@settings(max_examples=25)
@given(population=populations())
def test_every_sample_is_used_exactly_once(
    partition: Partition, population: tuple[int, int, int, int], make_split: MakeSplit
) -> None:
    samples, classes, clients, seed = population
    shares = partition.split(make_split(samples, classes, seed), clients, seed)
    used = np.concatenate([shares[client] for client in range(clients)])
    assert np.array_equal(np.sort(used), np.arange(samples))


@pytest.mark.parametrize("partition", ALL, ids=name)
def test_a_partition_is_a_pure_function_of_data_clients_and_seed(
    partition: Partition, make_split: MakeSplit
) -> None:
    def split(seed: int) -> list[list[int]]:
        shares = partition.split(make_split(500), 10, seed)
        return [shares[client].tolist() for client in range(10)]

    first = split(7)
    np.random.default_rng(1).random(10)
    sample_cohort(7, 1, 10, 3)
    assert split(7) == first
    assert split(8) != first
    assert len({tuple(held) for held in first}) == 10


@pytest.mark.parametrize("partition", COVERING, ids=name)
def test_more_clients_than_samples_is_refused(partition: Partition, make_split: MakeSplit) -> None:
    expected = "clients=70: the dataset has 60 training samples; at most one client per sample"
    with pytest.raises(DataError, match=expected):
        partition.split(make_split(60), 70, 0)
