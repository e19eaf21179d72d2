"""The sorted_by partition."""

from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError

import raysim
from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.partitions.sorted_by import SortedBy

MakeSplit = Callable[..., Split]


def test_equal_pieces_in_the_order_of_the_columns(make_split: MakeSplit) -> None:
    data = make_split(1003)
    indices = SortedBy().split(data, 10, 0)
    assert indices.sizes.tolist() == [101] * 3 + [100] * 7
    rows = np.concatenate([indices[client] for client in range(10)])
    met = list(zip(data.columns["age_group"][rows], data.columns["gender"][rows], strict=True))
    assert met == sorted(met)


def test_the_first_column_comes_first(make_split: MakeSplit) -> None:
    data = make_split(400)
    indices = SortedBy(columns=("gender", "age_group")).split(data, 2, 0)
    rows = np.concatenate([indices[0], indices[1]])
    met = list(zip(data.columns["gender"][rows], data.columns["age_group"][rows], strict=True))
    assert met == sorted(met)


def test_equal_values_are_in_random_order() -> None:
    same = {"age_group": np.zeros(2000), "gender": np.zeros(2000)}
    data = Split(np.zeros((2000, 1)), np.zeros(2000, np.int64), same)
    first = SortedBy().split(data, 2, 0)[0]
    assert len(first) == 1000
    assert 440 < (first < 1000).sum() < 560


def test_wrong_columns_are_refused(make_split: MakeSplit) -> None:
    expected = r"columns=age: no such column; this dataset has age_group, gender, writer"
    with pytest.raises(DataError, match=expected):
        SortedBy(columns=("gender", "age")).split(make_split(20), 2, 0)
    with pytest.raises(ValidationError):
        SortedBy(columns=())


def test_settings_as_a_user_types_them() -> None:
    overrides = {"partition.name": "sorted_by", "partition.columns": ["gender"]}
    settings = raysim.load_config("mnist-fedavg", overrides)
    assert settings.partition == SortedBy(columns=("gender",))
