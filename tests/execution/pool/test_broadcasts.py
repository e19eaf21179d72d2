"""Broadcasts: large tensors that the message before had are put once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import ray
import torch

import raysim
from raysim.api.rules import ClientValues, LocalValues
from raysim.execution.messages import EvaluationMessage
from raysim.execution.pool import broadcasts
from raysim.execution.pool.broadcasts import Broadcasts, fetch
from raysim.numbers.tensors import CPU
from raysim.numbers.tensors.packed import PackedGroup, PackedTensors


class FakeStore:
    """An object store that counts what is put."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def put(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def get(self, reference: int) -> Any:
        return self.values[reference]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    found = FakeStore()
    monkeypatch.setattr(broadcasts, "ray", found)
    monkeypatch.setattr(broadcasts, "OWN_BYTES", 100_000)
    return found


@dataclass(frozen=True)
class Other:
    """A message of another kind."""

    model: PackedTensors


def message(value: float, size: int = 50_000, own: float = 0.0) -> EvaluationMessage:
    deployed = {"model": {"w": torch.full((size,), value), "n": torch.tensor(3)}}
    return EvaluationMessage.of(
        raysim.Pass((), {}),
        deployed=PackedTensors.of(deployed),
        initial_state={"c": {"w": torch.full((size,), own)}, "none": {}},
        round_number=0,
        pass_number=0,
        uniform=True,
        total_weight=0,
        values=ClientValues(LocalValues()),
    )


def test_what_the_message_before_had_is_not_put_again(store):
    puts, found = Broadcasts(), []
    for value, own in ((1.0, 0.0), (1.0, 0.0), (2.0, 0.0), (1.0, 2.0)):
        before = len(store.values)
        reference = puts.put(message(value, own=own))
        found.append(len(store.values) - before)
        opened = fetch(reference)
        assert opened.deployed.open(CPU)["model"]["w"].unique().tolist() == [value]
        assert int(opened.deployed.open(CPU)["model"]["n"]) == 3
        assert opened.initial_state.open(CPU)["c"]["w"].unique().tolist() == [own]
    # The message itself, and of two groups those that the one before lacks.
    assert found == [3, 1, 2, 3]


def test_what_the_last_message_of_each_kind_had_is_not_put_again(store):
    """As the state of a client that has none yet, which an evaluation between passes lacks."""
    puts, found = Broadcasts(), []
    for value in (1.0, 2.0, 3.0):
        for each in (message(value), Other(message(value + 1.0).deployed)):
            before = len(store.values)
            puts.put(each)
            found.append(len(store.values) - before)
    assert found == [3, 2, 1, 2, 1, 2]


def test_a_message_that_was_put_has_no_copy_of_its_own(store):
    first, second = message(1.0, own=2.0), message(1.0, own=3.0)
    puts = Broadcasts()
    puts.put(first)
    puts.put(second)
    stored = {id(value) for value in store.values if isinstance(value, PackedGroup)}
    assert first.deployed.groups["model"] is second.deployed.groups["model"]
    groups = [
        first.deployed.groups["model"],
        *(m.initial_state.groups["c"] for m in (first, second)),
    ]
    assert stored == {id(group) for group in groups} and len(stored) == 3
    small = message(1.0, size=10)
    own = small.deployed.groups["model"]
    puts.put(small)
    assert small.deployed.groups["model"] is own


def test_small_groups_travel_in_the_message(store):
    reference = Broadcasts().put(message(1.0, size=10))
    assert len(store.values) == 1
    assert fetch(reference).deployed.open(CPU)["model"]["w"].tolist() == [1.0] * 10


def test_other_objects_are_put_as_they_are(store):
    assert fetch(Broadcasts().put([1, 2])) == [1, 2]


def test_the_object_store_holds_a_model_once(shared_ray):
    puts = Broadcasts()
    first, second = (puts.put(message(1.0, size=2_000_000)) for _ in range(2))
    groups = [ray.get(each).deployed.groups["model"] for each in (first, second)]
    assert isinstance(groups[0], ray.ObjectRef) and groups[0] == groups[1]
    opened = fetch(second).deployed
    assert not opened.groups["model"].arrays[torch.float32].flags.writeable  # no copy
    assert opened.open(CPU)["model"]["w"].unique().tolist() == [1.0]
