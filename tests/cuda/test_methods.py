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


LSTM = ("fedprox", "lstm")  # which is in no stack
ALONE = {LSTM, *CASES[::3], *CASES[-2:], *(case for case in CASES if case[0] in ONE_BY_ONE)}
"""Cases that are not left to `tests.full`: a method's code is the same in stacks."""


@pytest.mark.parametrize(("method", "family"), CASES)
def test_a_method_is_the_cpus_and_a_graph_is_its_steps(tmp_path, monkeypatch, method, family):
    runs = Runs(tmp_path, monkeypatch, method, family, FEW)
    stack, graphs = runs.on_gpu("stack"), runs.on_gpu("graphs")
    assert family == "dropping" or distance(runs.on_cpu(), stack.result) < DISTANCE
    assert distance(stack.result, graphs.result) == 0
    assert (graphs.gpu.counts["replays"] > 0) == (method != "fedasync")
    assert not [note for each in (stack, graphs) for note in each.notes]


@pytest.mark.parametrize(
    ("method", "family"),
    [
        pytest.param(*case, marks=[] if case in ALONE else pytest.mark.full)
        for case in [*CASES, LSTM]
    ],
)
def test_a_method_alone_is_the_cpus_and_a_graph_is_its_steps(tmp_path, monkeypatch, method, family):
    runs = Runs(tmp_path, monkeypatch, method, family, FEW)
    alone, recorded = runs.on_gpu("alone"), runs.on_gpu("recorded")
    assert distance(runs.on_cpu(), alone.result) < DISTANCE and not alone.notes
    assert distance(alone.result, recorded.result) == 0
    losses = [each.result.metrics["train_loss"].to_pylist() for each in (alone, recorded)]
    assert losses[0] == losses[1]
    assert (recorded.gpu.counts["replays"] > 0) == (method != "fedasync")
    assert not [note for note in recorded.notes if "does not give its bits" in note]
