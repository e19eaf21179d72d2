"""Every method on the device: as on the CPU, in stacks, and bit for bit in graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raysim.api.method import METHODS
from raysim.api.rules import Batch, Outputs, Rules, Tensors, Transform, View
from raysim.methods.fedavg import FedAvg
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


class Starting(FedAvg):
    """Two momenta that start as one tensor of zeros, and a mean that starts as the model sent."""

    def rules(self) -> Rules:
        return Rules(transforms=(Transform("two", _lean, _one_start),))


def _one_start(view: View) -> Tensors:
    zeros = {name: torch.zeros_like(view.params[name]) for name in view.trainable}
    first = {f"{place}/{name}": zeros[name] for name in zeros for place in "ab"}
    return first | {f"mean/{name}": view.broadcast["model"][name] for name in zeros}


def _lean(view: View, gradients: Tensors, batch: Batch, state: Tensors) -> tuple[Tensors, Tensors]:
    new, taken = {}, {}
    for name, gradient in gradients.items():
        new[f"a/{name}"] = 0.9 * state[f"a/{name}"] + gradient
        new[f"b/{name}"] = 0.5 * state[f"b/{name}"] - gradient
        new[f"mean/{name}"] = 0.9 * state[f"mean/{name}"] + 0.1 * view.params[name].detach()
        pull = state[f"mean/{name}"] - view.broadcast["model"][name]
        taken[name] = new[f"a/{name}"] - 0.5 * new[f"b/{name}"] + 0.3 * pull
    return taken, new


class Previous(FedAvg):
    """Adds the last step's gradient by a function that no key names, so that it is not recorded."""

    def rules(self) -> Rules:
        def lean(
            view: View, gradients: Tensors, batch: Batch, state: Tensors
        ) -> tuple[Tensors, Tensors]:
            return {n: gradient + 0.9 * state[n] for n, gradient in gradients.items()}, gradients

        return Rules(transforms=(Transform("previous", lean, _zeros),))


def _zeros(view: View) -> Tensors:
    return {name: torch.zeros_like(view.params[name]) for name in view.trainable}


@pytest.mark.parametrize("method", [Starting, Previous])
def test_states_are_those_of_their_steps(tmp_path, monkeypatch, method):
    runs = Runs(tmp_path, monkeypatch, f"{__name__}:{method.__name__}", "mlp", FEW)
    cpu, alone, recorded = runs.on_cpu(), runs.on_gpu("alone"), runs.on_gpu("recorded")
    assert recorded.gpu.counts["replays"] > 0
    assert distance(cpu, alone.result) < DISTANCE
    assert distance(alone.result, recorded.result) == 0


class Choosy(FedAvg):
    """Reads a value where a batch is small, so that a step on it cannot be recorded."""

    def rules(self) -> Rules:
        return Rules(criterion=_read_of_few)


def _read_of_few(view: View, outputs: Outputs, batch: Batch) -> Tensor:
    loss = batch.loss(outputs.logits)
    return loss * 1.0 if len(batch.y) < 8 and float(loss.detach()) > 0 else loss


def test_steps_on_other_batches_are_recorded_where_those_on_some_cannot_be(tmp_path, monkeypatch):
    steps = {"local.epochs": 12}
    runs = Runs(tmp_path, monkeypatch, f"{__name__}:Choosy", "mlp", (18, 18, 16, 16), **steps)
    recorded = runs.on_gpu("recorded")
    full = 2 * 12 * 4 * 2  # batches of 8
    assert recorded.gpu.counts["replays"] > full - 12
    assert distance(runs.on_gpu("alone").result, recorded.result) == 0
