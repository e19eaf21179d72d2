"""The contract of partitions."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raysim.workloads  # noqa: F401 - registers names
from raysim import load_config
from raysim.api.components import Component
from raysim.errors import DataError, SettingsError
from raysim.numbers.seeds import sample_cohort, stream
from raysim.samples.client_indices import ListedIndices
from raysim.samples.data import PARTITIONS, Partition, Split

COVERING: list[Partition] = [
    PARTITIONS.get(name).model_validate(fields)
    for name, fields in {
        "iid": {},
        "shards": {},
        "dirichlet": {},
        "class_imbalance": {"minimum": 1},
        "proportions": {},
        "permuted": {},
        "sorted_by": {},
    }.items()
]
ALL: list[Partition] = [
    *COVERING,
    PARTITIONS.get("resample").model_validate({"samples": 5}),
    PARTITIONS.get("classes").model_validate({"per_client": 1}),
    PARTITIONS.get("by_key")(),
    PARTITIONS.get("natural").model_validate({"key": "writer"}),
    PARTITIONS.get("natural_or_iid")(),
]
WITH_TERMS = {"split_classes", "color_skew"}
"""Partitions that take certain numbers of clients and classes alone; see their own tests."""

MakeSplit = Callable[..., Split]


def name(partition: Component) -> str:
    return partition.title


@st.composite
def populations(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Draw (samples, classes, clients, seed) that any partition can satisfy."""
    clients = draw(st.integers(1, 12))
    samples = draw(st.integers(40 * clients, 1000))
    return samples, draw(st.integers(1, 10)), clients, draw(st.integers(0, 2**40))


def test_every_registered_partition_is_held_to_the_contract() -> None:
    assert {partition.title for partition in ALL} | WITH_TERMS == set(PARTITIONS)


@pytest.mark.parametrize("partition", ALL, ids=name)
@settings(max_examples=25)
@given(population=populations())
def test_sizes_match_and_no_client_holds_a_sample_twice(
    partition: Partition, population: tuple[int, int, int, int], make_split: MakeSplit
) -> None:
    samples, classes, clients, seed = population
    indices = partition.split(make_split(samples, classes, seed), clients, seed)
    assert indices.sizes.shape == (clients,)
    assert indices.sizes.min() >= 1
    for client in range(clients):
        held = indices[client]
        assert held.dtype == np.int64
        assert len(held) == indices.sizes[client]
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
    indices = partition.split(make_split(samples, classes, seed), clients, seed)
    used = np.concatenate([indices[client] for client in range(clients)])
    assert np.array_equal(np.sort(used), np.arange(samples))


@pytest.mark.parametrize("partition", ALL, ids=name)
def test_a_partition_is_a_pure_function_of_data_clients_and_seed(
    partition: Partition, make_split: MakeSplit
) -> None:
    def split(seed: int) -> list[list[int]]:
        indices = partition.split(make_split(500), 10, seed)
        return [indices[client].tolist() for client in range(10)]

    first = split(7)
    np.random.default_rng(1).random(10)
    sample_cohort(stream(7, "cohort", 1), 10, 3)
    assert split(7) == first
    assert split(8) != first
    assert len({tuple(held) for held in first}) == 10


@pytest.mark.parametrize("partition", COVERING, ids=name)
def test_more_clients_than_samples_is_refused(partition: Partition, make_split: MakeSplit) -> None:
    expected = "clients=70: the dataset has 60 training samples; at most one client per sample"
    with pytest.raises(DataError, match=expected):
        partition.split(make_split(60), 70, 0)


@pytest.mark.parametrize("limit", [1, 20, 49, 1000])
@pytest.mark.parametrize("partition", ALL, ids=name)
def test_a_limit_keeps_that_many_of_a_client_s_samples(
    partition: Partition, limit: int, make_split: MakeSplit
) -> None:
    whole = partition.client_indices(make_split(500), 10, 7)
    limited = type(partition).model_validate({**partition.model_dump(), "limit": limit})
    few, again = (limited.client_indices(make_split(500), 10, seed) for seed in (7, 7))
    assert few.sizes.tolist() == np.minimum(whole.sizes, limit).tolist()
    assert isinstance(few, ListedIndices) == isinstance(whole, ListedIndices)  # saved with the run
    for client in range(10):
        kept, held = few[client].tolist(), whole[client].tolist()
        assert len(kept) == few.sizes[client] and again[client].tolist() == kept
        assert [row for row in held if row in set(kept)] == kept


def test_a_limit_takes_any_sample_alike_often(make_split: MakeSplit) -> None:
    times = np.zeros(30, int)
    for seed in range(2000):
        times[PARTITIONS.get("iid")(limit=9).client_indices(make_split(30), 1, seed)[0]] += 1
    assert times.sum() == 18_000
    assert np.abs(times - 600).max() < 110  # five standard deviations


def test_a_population_stays_lazy_under_a_limit(make_split: MakeSplit) -> None:
    resample = PARTITIONS.get("resample").model_validate({"samples": 5, "limit": 3})
    sizes = resample.client_indices(make_split(500), 10**9, 0).sizes
    assert sizes.shape == (10**9,) and sizes.strides == (0,) and sizes[10**9 - 1] == 3


def test_a_limit_is_a_setting() -> None:
    with pytest.raises(SettingsError, match=r"partition.limit=0: must be"):
        load_config("mnist-fedavg", {"partition.limit": 0})
    assert load_config("mnist-fedavg", {"partition.limit": 5}).partition.limit == 5
