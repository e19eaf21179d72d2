"""Names of the classes of built-in datasets."""

from __future__ import annotations

import pytest

from raysim import workloads  # noqa: F401 - registers the datasets
from raysim.api.components import build_component
from raysim.samples.data import DATASETS

NAMED = {
    "cifar10": {0: "airplane", 9: "truck"},
    "cifar100": {0: "apple", 53: "orange", 99: "worm"},
    "fashion-mnist": {0: "T-shirt/top", 9: "ankle boot"},
    "femnist": {9: "9", 10: "A", 36: "a", 61: "z"},
    "femnist letters=True": {0: "a", 25: "z"},
    "emnist split=byclass": {10: "A", 61: "z"},
    "emnist split=balanced": {10: "A", 36: "a", 46: "t"},
    "emnist split=letters": {0: "a", 25: "z"},
    "spam-assassin": {1: "spam"},
    "aptos": {4: "proliferative"},
    "chest-xray": {1: "pneumonia"},
    "mimic3": {1: "died"},
}


@pytest.mark.parametrize("given", NAMED)
def test_each_class_has_a_name_of_its_own(given):
    name, *settings = given.split()
    fields = {key: value == "True" or value for key, value in (s.split("=") for s in settings)}
    dataset = build_component(DATASETS.get(name), fields, "dataset.")
    names = dataset.class_names
    assert len({*names}) == len(names) == dataset.classes
    assert {number: names[number] for number in NAMED[given]} == NAMED[given]


def test_digits_are_their_numbers():
    for name, fields in (("mnist", {}), ("emnist", {"split": "digits"})):
        assert not build_component(DATASETS.get(name), fields, "dataset.").class_names
