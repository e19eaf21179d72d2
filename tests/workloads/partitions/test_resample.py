"""The resampled, lazy population."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError

from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.partitions.resample import Resample

MakeSplit = Callable[..., Split]


def test_a_million_clients_open_at_once(make_split: MakeSplit) -> None:
    data = make_split(60_000)
    begun = time.perf_counter()
    indices = Resample().split(data, 1_000_000, 0)
    held = indices[999_999]
    assert time.perf_counter() - begun < 0.5
    assert indices.sizes.shape == (1_000_000,)
    assert indices.sizes.strides == (0,)
    assert len(held) == len(np.unique(held)) == 60


def test_a_client_depends_on_its_number_alone(make_split: MakeSplit) -> None:
    few, many = (Resample().split(make_split(500), clients, 3) for clients in (10, 10**6))
    backwards = [few[client].tolist() for client in reversed(range(10))]
    assert backwards[::-1] == [many[client].tolist() for client in range(10)]


def test_samples_are_drawn_evenly_from_the_pool(make_split: MakeSplit) -> None:
    indices = Resample(samples=10).split(make_split(50), 5000, 0)
    times = np.bincount(np.concatenate([indices[k] for k in range(5000)]), minlength=50)
    assert times.min() > 850
    assert times.max() < 1150


def test_a_pool_that_is_too_small_is_refused(make_split: MakeSplit) -> None:
    with pytest.raises(DataError, match=r"partition\.samples=60: the dataset has 59 training"):
        Resample().split(make_split(59), 3, 0)
    assert sorted(Resample().split(make_split(60), 3, 0)[2]) == list(range(60))


def test_samples_start_at_one() -> None:
    with pytest.raises(ValidationError):
        Resample(samples=0)
