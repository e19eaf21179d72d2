"""Hooks of components: what their base classes state that they return, checked at each call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest

import raysim
from raysim.api.components import call
from raysim.api.method import Method
from raysim.api.next_state import check_deployed
from raysim.methods.fedavg import FedAvg
from raysim.samples.data import Dataset, Partition
from raysim.testing.tasks import SmallNet
from raysim.workloads.datasets.mnist import Mnist
from raysim.workloads.partitions.iid import Iid


class Own(FedAvg):
    """Method whose hooks are wrong."""

    def asynchrony(self, size):
        return size / (size - 1)

    def client_bytes(self, state):
        return -1

    def deployed(self, state):
        return {name: t for name, t in super().deployed(state).items() if name != "head.bias"}


class OwnPartition(Iid):
    """Partition with too few names."""

    def client_names(self, train, held):
        return ["a"]


class OwnData(Mnist):
    """Dataset with too few classes, as a property, and with a hook that is none."""

    classes: ClassVar[int] = 0
    for_run: ClassVar[int] = 3


HELD = SimpleNamespace(sizes=[3, 2])
CASES = {
    "another type": (Own, Method.asynchrony, (3,), "returned 1.5; must return a raysim.Asynchrony"),
    "an error": (Own, Method.asynchrony, (1,), "failed: ZeroDivisionError: division by zero (test"),
    "out of range": (Own, Method.client_bytes, (None,), "returned -1; must return a number of by"),
    "by its arguments": (
        *(OwnPartition, Partition.client_names, (None, HELD)),
        "returned ['a']; must return None, or 2 names, one a client",
    ),
    "a property": (
        OwnData,
        Dataset.classes,
        (),
        "returned 0; must return a whole number from",
    ),
    "no method": (OwnData, Dataset.for_run, (7,), "failed: TypeError: 'int' object is not callab"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hook_that_does_not_return_what_its_base_states_is_one_line(case):
    kind, hook, given, says = CASES[case]
    named = {Own: "method", OwnPartition: "partition", OwnData: "dataset"}[kind]
    name = getattr(hook, "fget", hook).__name__
    with pytest.raises(raysim.SettingsError) as caught:
        call(kind(), hook, *given)
    start = f"{named}.name={__name__}:{kind.__name__}: {name} {says}"
    assert str(caught.value).startswith(start) and "\n" not in str(caught.value)


def test_a_deployed_model_has_all_tensors_of_the_network():
    network, method = SmallNet(), Own()
    with pytest.raises(raysim.SettingsError, match=r"Own: deployed returned no tensor 'head.bias'"):
        check_deployed(method, method.init(network), network)
