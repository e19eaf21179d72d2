"""Shared samples beside the clients' own, of every partition (Zhao et al., 2018)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim import load_config
from raysim.errors import DataError, SettingsError
from raysim.federation.evaluation_sets import drawn_test_set
from raysim.samples.client_indices import Holdout, SharingIndices
from raysim.samples.data import PARTITIONS, Partition, Split
from raysim.samples.sharing import SomeInputs, shared_samples
from tests.workloads.partitions.test_partition_contract import ALL, name

MakeSplit = Callable[..., Split]


def sharing(partition: Partition, **fields: Any) -> Partition:
    return type(partition).model_validate({**partition.model_dump(), **fields})


def lists(partition: Partition, data: Split, clients: int, seed: int) -> list[list[int]]:
    indices = partition.client_indices(data, clients, seed)
    held = [indices[client].tolist() for client in range(clients)]
    assert [len(each) for each in held] == indices.sizes.tolist()
    return held


@pytest.mark.parametrize("partition", ALL, ids=name)
@pytest.mark.parametrize("fields", [{}, {"limit": 7}])
def test_clients_hold_what_a_split_of_the_rest_gives_them_and_the_same_shared_samples(
    partition: Partition, fields: dict[str, int], make_split: MakeSplit
) -> None:
    data = make_split(500)
    held = lists(sharing(partition, shared=30, **fields), data, 10, 7)
    shared = held[0][-30:]
    assert np.bincount(data.y[shared]).tolist() == [3] * 10
    rest = np.array([row for row in range(500) if row not in set(shared)])
    columns = {key: values[rest] for key, values in data.columns.items()}
    own = lists(sharing(partition, **fields), Split(data.x[rest], data.y[rest], columns), 10, 7)
    assert held == [[*rest[each], *shared] for each in own]


@settings(max_examples=40)
@given(st.integers(1, 12), st.data())
def test_classes_are_shared_alike(classes: int, draw: st.DataObject) -> None:
    """No two classes differ by more than one sample, whichever classes have one more."""
    held = draw.draw(st.lists(st.integers(9, 30), min_size=classes, max_size=classes))
    count, seed = draw.draw(st.integers(1, 8 * classes)), draw.draw(st.integers(0, 2**40))
    y = np.random.default_rng(seed).permutation(np.repeat(10 + np.arange(classes), held))
    shared = shared_samples(y, count, seed)
    assert np.array_equal(shared, np.unique(shared)) and len(shared) == count
    counts = np.bincount(y[shared] - 10, minlength=classes)
    assert counts.max() - counts.min() <= 1


def test_any_sample_is_shared_alike_often() -> None:
    """Of 12 samples of three classes four are shared: one of each class, and one of any class."""
    y = np.array([0] * 6 + [1] * 3 + [2] * 3)
    times = np.zeros(12)
    for seed in range(3000):
        times[shared_samples(y, 4, seed)] += 1
    expected = np.array([4 / 3 / 6] * 6 + [4 / 3 / 3] * 6)
    assert np.abs(times / 3000 - expected).max() < 5 * (0.25 / 3000) ** 0.5


def test_targets_that_are_no_classes_are_drawn_alike() -> None:
    for y in (np.linspace(0, 1, 40), np.zeros((40, 2), np.int64)):
        shared = shared_samples(y, 9, 3)
        assert np.array_equal(shared, np.unique(shared)) and len(shared) == 9
        assert shared.tolist() != shared_samples(y, 9, 4).tolist()


def test_a_portion_is_drawn_for_each_client(make_split: MakeSplit) -> None:
    half = PARTITIONS.get("iid")(shared=20, shared_portion=0.3)
    whole = PARTITIONS.get("iid")(shared=20)
    data = make_split(400)
    held, again = (lists(half, data, 200, 5) for _ in range(2))
    everything = lists(whole, data, 200, 5)
    shared, parts = everything[0][-20:], [each[-6:] for each in held]
    assert held == again
    assert [each[:-6] for each in held] == [each[:-20] for each in everything]
    times = np.bincount(np.searchsorted(shared, np.ravel(parts)), minlength=20)
    assert np.isin(parts, shared).all() and all(len({*part}) == 6 for part in parts)
    assert np.abs(times - 60).max() < 5 * (200 * 0.3 * 0.7) ** 0.5
    few = PARTITIONS.get("iid")(shared=20, shared_portion=0.01)
    assert few.client_indices(data, 10, 5).sizes.max() == 38 + 1  # at least one


def test_shared_samples_do_not_depend_on_partition_or_population(make_split: MakeSplit) -> None:
    data = make_split(500)
    found = {
        tuple(lists(sharing(each, shared=20), data, clients, 3)[0][-20:])
        for each, clients in ((ALL[0], 10), (ALL[1], 5), (ALL[2], 1))
    }
    assert len(found) == 1


def test_a_population_stays_lazy(make_split: MakeSplit) -> None:
    resample = PARTITIONS.get("resample")(samples=5, shared=40, shared_portion=0.5)
    indices = resample.client_indices(make_split(500), 10**9, 0)
    assert indices.sizes.shape == (10**9,) and indices.sizes.strides == (0,)
    assert len(indices[10**9 - 1]) == indices.sizes[0] == 25


def test_inputs_of_the_rest_are_read_when_they_are_asked_for() -> None:
    x = np.arange(30, dtype=np.int16).reshape(10, 3)
    some = SomeInputs(x, np.array([2, 5, 7]))
    assert (len(some), some.shape, some.dtype) == (3, (3, 3), np.int16)
    assert some[:2].tolist() == x[[2, 5]].tolist()
    assert some[np.array([2, 0])].tolist() == x[[7, 2]].tolist()


def held_out(holdout: Holdout, n: int) -> list[int]:
    training, rest = holdout.divide(0, n)
    assert np.sort([*training, *rest]).tolist() == [*range(n)]
    assert len(training) == holdout.training_sizes(np.array([n]))[0]
    return rest.tolist()


@pytest.mark.parametrize(("own", "fraction"), [(20, 0.25), (3, 0.5), (1, 0.5), (10, 0.0)])
def test_own_samples_are_held_out_as_without_shared_ones(own: int, fraction: float) -> None:
    alone = held_out(Holdout(fraction, 3), own)
    assert held_out(Holdout(fraction, 3, shared=12), own + 12) == alone


def test_a_client_is_tested_in_the_proportions_of_its_own_samples(make_split: MakeSplit) -> None:
    data, test = make_split(600, 3), make_split(90, 3, 1).y
    indices = PARTITIONS.get("split_classes")(shared=60).client_indices(data, 3, 2)
    found = drawn_test_set(indices, data.y, test, 2)
    assert [np.unique(test[found.samples[client]]).tolist() for client in range(3)] == [
        [client] for client in range(3)
    ]


def test_a_partition_is_asked_for_the_tests_of_own_samples() -> None:
    class Last(Partition):
        """Tests a client on the samples that it trains on."""

        def split(self, data: Split, clients: int, seed: int) -> Any:
            return PARTITIONS.get("iid")().split(data, clients, seed)

        def split_test(self, train: Split, test: Split, held: Any) -> Any:
            return [held[client] for client in range(len(held.sizes))]

    data = Split(np.zeros((40, 1)), np.arange(40) % 2)
    indices = Last(shared=10).client_indices(data, 3, 0)
    tests = Last(shared=10).local_test_indices(data, data, indices)
    assert tests is not None and isinstance(indices, SharingIndices)
    assert tests.sizes.tolist() == [10, 10, 10] == (indices.sizes - 10).tolist()


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        (500, r"partition.shared=500: the dataset has 500 training samples; clients need samples"),
        (499, r"partition.shared=499: (49|50) samples of each of 10 classes; class \d has \d\d"),
        (490, r"partition.shared=490: 49 samples of each of 10 classes; class \d has \d\d"),
    ],
)
def test_too_many_are_refused(shared: int, said: str, make_split: MakeSplit) -> None:
    with pytest.raises(DataError, match=said):
        PARTITIONS.get("iid")(shared=shared).client_indices(make_split(500), 1, 0)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"shared": 0}, r"partition.shared=0: must be"),
        ({"shared": 10, "shared_portion": 0.0}, r"partition.shared_portion=0.0: must be"),
        ({"shared": 10, "shared_portion": 1.5}, r"partition.shared_portion=1.5: must be"),
        ({"shared_portion": 0.5}, r"partition.shared_portion=0.5: needs partition.shared"),
    ],
)
def test_wrong_settings_are_refused(overrides: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=said):
        load_config("mnist-fedavg", {f"partition.{key}": of for key, of in overrides.items()})
