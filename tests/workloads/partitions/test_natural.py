"""Natural clients of a dataset that has a column of its own for them."""

from __future__ import annotations

import pytest

from raysim.errors import DataError
from raysim.federation.prepared import open_prepared, prepared
from raysim.samples.arrow import open_split
from raysim.workloads.datasets.synthetic import Synthetic
from raysim.workloads.partitions.by_key import ByKey
from raysim.workloads.partitions.iid import Iid
from raysim.workloads.partitions.natural import Natural
from raysim.workloads.partitions.natural_or_iid import NaturalOrIid


def test_natural_clients_are_those_of_the_dataset_s_own_column(tmp_path):
    dataset = Synthetic(users=5, samples=4, test_samples=2)
    paths = prepared(dataset, tmp_path, lambda *_: None)
    train, test = (open_prepared(dataset, paths[name]) for name in ("train", "test"))
    natural, by_key = Natural(minimum=4), ByKey(key="user", minimum=4)
    ours, theirs = (each.split(train, 3, 7) for each in (natural, by_key))
    assert [ours[k].tolist() for k in range(3)] == [theirs[k].tolist() for k in range(3)]
    tests = natural.split_test(train, test, ours)
    assert tests is not None
    for client, rows in enumerate(tests):
        (user,) = {*train.columns["user"][ours[client]]}
        assert len(rows) == 2 and {*test.columns["user"][rows]} == {user}


def test_a_dataset_without_natural_clients_is_refused(tmp_path):
    paths = prepared(Synthetic(users=2, samples=4), tmp_path, lambda *_: None)
    with pytest.raises(DataError, match=r"partition\.name=natural: .*dataset\.client"):
        Natural().split(open_split(paths["train"]), 2, 0)  # as prepared, without its dataset


def test_natural_clients_if_there_are_any_else_an_equal_cut(tmp_path):
    dataset = Synthetic(users=5, samples=4, test_samples=2)
    paths = prepared(dataset, tmp_path, lambda *_: None)
    train, test = (open_prepared(dataset, paths[name]) for name in ("train", "test"))
    without = open_split(paths["train"])  # as prepared, without its dataset
    both, natural = NaturalOrIid(), Natural()
    assert both.natural_clients(train) == 5 and both.natural_clients(without) is None
    for data, rule in ((train, natural), (without, Iid())):
        ours, theirs = (each.split(data, 3, 7) for each in (both, rule))
        assert [ours[k].tolist() for k in range(3)] == [theirs[k].tolist() for k in range(3)]
        assert both.client_names(data, ours) == rule.client_names(data, ours)
        tests = both.split_test(data, test, ours)
        expected = rule.split_test(data, test, ours)
        assert (tests is None) == (expected is None) == (data is without)
        assert [*map(list, tests or ())] == [*map(list, expected or ())]
