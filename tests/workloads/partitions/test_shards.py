"""The shards partition."""

from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError

from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.partitions.shards import Shards
from tests.workloads.partitions.conftest import balanced, counts_of

MakeSplit = Callable[..., Split]


@pytest.mark.parametrize("size", [None, 300])
def test_mcmahans_mnist_has_two_shards_of_300_and_at_most_two_classes(size: int | None) -> None:
    data = balanced(6000)
    indices = Shards(size=size).split(data, 100, 0)
    assert set(indices.sizes) == {600}
    classes = [len(np.unique(data.y[indices[client]])) for client in range(100)]
    assert max(classes) == 2
    assert np.array_equal(np.sort(indices.indices), np.arange(60_000))


@pytest.mark.parametrize(
    ("shards", "clients", "classes", "samples", "most_classes"),
    [
        (Shards(per_client=5, size=200), 50, 10, 1000, 5),  # FLex&Chill, CIFAR-10
        (Shards(per_client=2), 100, 10, 500, 2),  # FedMAX, CIFAR-10
        (Shards(per_client=20), 100, 100, 500, 20),  # FedMAX, CIFAR-100
    ],
)
def test_the_shards_of_papers_on_50000_images(
    shards: Shards, clients: int, classes: int, samples: int, most_classes: int
) -> None:
    data = balanced(50_000 // classes, classes)
    indices = shards.split(data, clients, 0)
    counts = counts_of(data, indices, classes)
    assert set(counts.sum(axis=1)) == {samples}
    assert (counts > 0).sum(axis=1).max() == most_classes
    assert np.array_equal(np.sort(indices.indices), np.arange(50_000))


@pytest.mark.parametrize("per_client", [1, 2, 3, 5])
def test_a_client_holds_whole_shards(make_split: MakeSplit, per_client: int) -> None:
    data = make_split(1000)
    order = np.argsort(data.y, kind="stable")
    place = np.empty(1000, dtype=np.int64)
    place[order] = np.arange(1000)
    indices = Shards(per_client=per_client, size=20).split(data, 10, 0)
    held = np.stack([place[indices[client]].reshape(per_client, 20) for client in range(10)])
    assert np.array_equal(held[..., 0] % 20, np.zeros((10, per_client)))
    assert np.array_equal(held, held[..., :1] + np.arange(20))
    assert len(np.unique(held[..., 0])) == 10 * per_client


def test_shards_left_over_come_from_all_classes() -> None:
    data = balanced(600)
    indices = Shards(per_client=1, size=100).split(data, 30, 0)
    assert set(indices.sizes) == {100}
    assert len(np.unique(data.y[indices.indices])) > 5


def test_shards_that_need_more_than_there_is_are_refused(make_split: MakeSplit) -> None:
    expected = (
        r"partition\.size=51: clients=10 with partition\.per_client=2 need 1020 samples;"
        " the dataset has 1000 training samples"
    )
    with pytest.raises(DataError, match=expected):
        Shards(size=51).split(make_split(1000), 10, 0)
    assert Shards(size=50).split(make_split(1000), 10, 0).sizes.sum() == 1000


def test_shards_without_samples_are_refused(make_split: MakeSplit) -> None:
    expected = r"partition\.per_client=2: clients=30 hold 60 shards; the dataset has 30 training"
    with pytest.raises(DataError, match=expected):
        Shards(per_client=2).split(make_split(30), 30, 0)


@pytest.mark.parametrize("field", ["per_client", "size"])
def test_settings_start_at_one(field: str) -> None:
    with pytest.raises(ValidationError):
        Shards.model_validate({field: 0})
