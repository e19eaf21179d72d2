"""Unequal sizes of clients: of a family, drawn from the seed, and every sample is used."""

from __future__ import annotations

import numpy as np
import pytest

import raysim
from raysim.errors import DataError, SettingsError
from raysim.numbers.seeds import stream
from raysim.samples.data import Split
from raysim.workloads.partitions.classes import Classes
from raysim.workloads.partitions.iid import Iid
from raysim.workloads.partitions.proportions import Proportions
from raysim.workloads.partitions.shards import Shards
from raysim.workloads.partitions.sorted_by import SortedBy

FAMILIES = ("linear", "power_law", "log_normal")
KINDS = {
    "iid": Iid,
    "shards": Shards,
    "proportions": Proportions,
    "sorted_by": lambda **given: SortedBy(columns=("age",), **given),
}


def data(samples=4000):
    y = np.arange(samples) % 10
    return Split(np.zeros((samples, 1)), y, {"age": np.arange(samples) // 40})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_is_used_once_whatever_the_sizes(kind, family):
    partition = KINDS[kind](sizes=family)
    held = partition.client_indices(data(), 20, 5)
    used = np.concatenate([held[client] for client in range(20)])
    assert sorted(used) == [*range(4000)] and held.sizes.min() >= 1
    assert held.sizes.max() > 2 * np.median(held.sizes) or family == "linear"
    assert held.sizes.max() > 3 * held.sizes.min()
    again, other = (partition.client_indices(data(), 20, seed).sizes for seed in (5, 6))
    assert (again == held.sizes).all() and (other != held.sizes).any()


def test_the_sizes_are_those_of_the_formulas():
    def sizes(family, spread):
        generator = stream(3, "sizes")
        return Iid(sizes=family, spread=spread).client_sizes(100_050, 50, generator)

    ranks = stream(3, "sizes").permutation(50)
    ratios = {
        ("linear", 0.5): 0.5 + ranks / 49,
        ("power_law", 1.5): (1.0 + ranks) ** -1.5,
    }
    for given, expected in ratios.items():
        assert np.abs(sizes(*given) - 1 - 100_000 * expected / expected.sum()).max() < 1.0001
    many = Iid(sizes="log_normal", spread=0.7).client_sizes(10**9, 20_000, stream(3, "sizes"))
    assert np.log(many).std() == pytest.approx(0.7, rel=0.02)


def test_clients_of_unequal_shards_have_few_classes_as_before():
    held = Shards(sizes="power_law").client_indices(data(), 20, 5)
    assert max(len({*data().y[held[client]]}) for client in range(20)) <= 6
    sizes = Iid(sizes="power_law").client_sizes(4000, 20, stream(5, "sizes"))
    assert held.sizes.tolist() == sizes.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_holders_of_a_class_divide_it_by_their_sizes(family):
    """Each has one of its samples at least, and each client as many classes as without."""
    held = Classes(per_client=3, sizes=family).client_indices(data(), 20, 5)
    ratios = Iid(sizes=family).client_ratios(20, stream(5, "sizes"))
    counts = np.stack([np.bincount(data().y[held[client]], minlength=10) for client in range(20)])
    assert counts.sum(axis=0).tolist() == [400] * 10 and {*(counts > 0).sum(axis=1)} == {3}
    for of_class in counts.T:
        holders = np.flatnonzero(of_class)
        shares = ratios[holders] / ratios[holders].sum()
        assert np.abs(of_class[holders] - 1 - (400 - len(holders)) * shares).max() < 1.0001


@pytest.mark.parametrize("assigned", ["random", "in_order"])
def test_sizes_need_a_class_that_clients_divide(assigned):
    says = (
        r"^partition\.sizes=linear: needs clients that divide a class by their sizes, and with"
        r" partition\.per_client=2, clients=5 no class of 10 has two; raise one of the two$"
    )
    given = {"sizes": "linear", "spread": 1.0, "assigned": assigned}
    with pytest.raises(DataError, match=says):
        Classes(per_client=2, **given).client_indices(data(), 5, 5)
    for seed in range(10):  # the smallest client is alone with a class in some
        held = Classes(per_client=1, **given).client_indices(data(), 11, seed)
        assert sum(held.sizes) % 400 == 0 and held.sizes.min() >= 1


@pytest.mark.parametrize("kind", [Iid, Shards, Proportions])
def test_one_client_has_all_samples_whatever_its_size(kind):
    held = kind(sizes="linear", spread=1.0).client_indices(data(), 1, 5)
    assert held.sizes.tolist() == [4000]


def test_a_setting_of_other_partitions_is_told_with_them():
    given = {"partition.name": "dirichlet", "partition.sizes": "linear"}
    taking = "classes, iid, permuted, proportions, shards, sorted_by"
    told = rf"^partition\.sizes: no such setting; .* \(sizes is of {taking}\)$"
    with pytest.raises(SettingsError, match=told):
        raysim.load_config("mnist-fedavg", given)


def test_as_many_clients_as_samples_have_one_each():
    for family in FAMILIES:
        assert {*Iid(sizes=family).client_indices(data(20), 20, 0).sizes} == {1}
        assert Iid(sizes=family).client_indices(data(20), 1, 0).sizes.tolist() == [20]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"partition.sizes": "zipf"}, 'partition.sizes="zipf": '),
        ({"partition.spread": 0.5}, "partition.spread=0.5: needs partition.sizes"),
        (
            {"partition.sizes": "linear", "partition.spread": 1.5},
            "partition.spread=1.5: must be at most 1 with partition.sizes=linear",
        ),
        (
            {"partition.name": "shards", "partition.size": 300, "partition.sizes": "linear"},
            "partition.size=300: must be none with partition.sizes=linear",
        ),
        (
            {
                **{"partition.name": "classes", "partition.shares": "random"},
                **{"partition.sizes": "linear"},
            },
            "partition.shares=random: must be equal with partition.sizes=linear",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(given, said):
    with pytest.raises(SettingsError) as refused:
        raysim.load_config("mnist-fedavg", given)
    assert str(refused.value).startswith(said)
