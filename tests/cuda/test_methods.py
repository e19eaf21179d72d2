"""Every method on the device: as on the CPU, in stacks, and bit for bit in graphs."""

from __future__ import annotations

import pytest

from raysim.api.method import METHODS
from tests.cuda.runs import DISTANCE, FEW, Runs, distance
from tests.methods.test_contract import UNSUPPORTED

TURNS = ("mlp", "cnn", "residual")
ONE_BY_ONE = ("centralized", "fedasync")
"""Methods that never start two clients at once."""


def family_of(number: int, method: str) -> str:
    """Return the family of models of a method: in turn, but for those that do not go together."""
    order = [TURNS[(number + step) % len(TURNS)] for step in range(len(TURNS))]
    return next(family for family in order if (method, family) not in UNSUPPORTED)


CASES = [(method, family_of(number, method)) for number, method in enumerate(METHODS)]
CASES += [("fedavg", "dropping"), ("fsvrg", "dropping")]


@pytest.mark.parametrize(("method", "family"), CASES)
def test_a_method_is_the_cpus_and_a_graph_is_its_steps(tmp_path, monkeypatch, method, family):
    runs = Runs(tmp_path, monkeypatch, method, family, FEW)
    cpu, alone = runs.on_cpu(), runs.on_gpu("alone")
    stack, graphs = runs.on_gpu("stack"), runs.on_gpu("graphs")
    assert distance(cpu, alone.result) < DISTANCE
    assert family == "dropping" or distance(cpu, stack.result) < DISTANCE
    assert distance(stack.result, graphs.result) == 0
    assert (graphs.gpu.counts["replays"] > 0) == (method not in ONE_BY_ONE)
    assert not [note for each in (alone, stack, graphs) for note in each.notes]
