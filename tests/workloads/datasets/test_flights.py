"""The real flights once: their number, clients, delays, and the time that preparing takes."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest

from raysim.errors import DataError
from raysim.federation.prepared import network_size, open_prepared, prepared
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.datasets.flights import CSV, Flights
from raysim.workloads.partitions.natural import Natural

SECONDS = 10


def ignore(what: str, done: int, total: int) -> None:
    pass


def test_the_real_flights(tmp_path):
    dataset = Flights()
    prepared(dataset, data_root(), ignore)  # which fetches the table
    (tmp_path / "flights").mkdir()
    (tmp_path / "flights" / CSV).symlink_to(data_root() / "flights" / CSV)
    begun = perf_counter()
    paths = prepared(dataset, tmp_path, ignore)
    assert perf_counter() - begun < SECONDS
    train, test = (open_prepared(dataset, paths[split]) for split in ("train", "test"))
    assert len(train) + len(test) == 336_776 - 9_430
    delays = np.concatenate([train.y, test.y])
    assert delays.mean() == pytest.approx(6.895377, abs=1e-4)  # as R's package has it
    assert network_size(dataset, lambda: train) == ((9,), 1)  # six numbers, three airports
    assert abs(np.asarray(train.x[:])[:, :6].mean(axis=0)).max() < 1e-4
    indices = Natural().split(train, 16, 0)
    carriers = [train.columns["client"][indices[client][0]] for client in (0, 11)]
    assert carriers == ["9E", "UA"] and indices.sizes[11] > 40_000
    with pytest.raises(DataError, match=r"clients=17: 16 of the 16 values"):
        Natural().split(train, 17, 0)


def test_a_damaged_table_is_not_fetched_over(tmp_path):
    folder = tmp_path / "flights"
    folder.mkdir()
    (folder / CSV).write_text("year,month\n2013,1\n")
    with pytest.raises(DataError, match="no such column"):
        prepared(Flights(), tmp_path, ignore)
