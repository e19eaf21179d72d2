"""Random draws in recorded steps: a rule that asks for another gradient has the step's own."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

import raysim
from raysim.api.rules import Rules, Transform
from raysim.methods.fedavg import FedAvg
from raysim.training.stacked.cuda_graphs import GraphRecorder
from tests.methods.test_contract import settings_for
from tests.methods.test_oracle import NAMES, start_of
from tests.tasks import Notes, make_task
from tests.training.stacked.test_cuda_graphs import Tape
from tests.training.stacked.test_trainer import RECORDER_ON, Dropping, difference

HOST = torch.default_generator
FAR = 10**6
"""Draws into a graph at which a state from before it would have it go on."""


class Generator:
    """A generator as torch's of a CUDA device, from 2.10 on where `in_recordings`.

    In a recording its state is how much that has drawn so far, whatever was drawn before: a replay
    adds it to the state that it finds.
    """

    tape = None
    in_recordings = True

    def get_state(self):
        if self.tape is None:
            return HOST.get_state()
        if not self.in_recordings:
            raise RuntimeError("Cannot call CUDAGeneratorImpl::current_seed")
        return self.tape.place

    def set_state(self, state):
        if self.tape is None:
            HOST.set_state(state)
        else:
            self.tape.place = state if isinstance(state, int) else FAR

    def manual_seed(self, seed):
        HOST.manual_seed(seed)


class DrawingTape(Tape):
    """A tape that draws as a CUDA graph does.

    Attributes:
        place: Draws since its beginning.
    """

    def __init__(self, step, inputs):
        self.place, self.places = 0, {}
        self.states = {0: HOST.get_state(), FAR: torch.Generator().manual_seed(FAR).get_state()}
        Generator.tape, end = self, 0
        try:
            super().__init__(step, inputs)
            end = self.place
        finally:  # a recording that fails has drawn nothing
            Generator.tape = None
            HOST.set_state(self.states[end])

    def do(self, number, function, args, kwargs):
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return super().do(number, function, args, kwargs)
        place = self.places.setdefault(number, self.place)
        HOST.set_state(self.states[place])
        result = super().do(number, function, args, kwargs)
        self.place = place + 1
        self.states[self.place] = HOST.get_state()
        return result

    def __call__(self, inputs):
        end = self.place
        if not self.taken:
            self.states[0] = HOST.get_state()
        outputs = super().__call__(inputs)
        HOST.set_state(self.states[end])
        return outputs


@pytest.fixture
def generator(monkeypatch):
    """Record steps that come six times, as a device does; return the generator of the steps."""
    monkeypatch.setattr(torch, "default_generator", found := Generator())
    monkeypatch.setattr("raysim.training.stacked.cuda_graphs.MIN_REPLAYS", 3)
    monkeypatch.setattr(RECORDER_ON, lambda device, note: GraphRecorder(DrawingTape, note))
    monkeypatch.setattr(Tape, "played", 0)
    return found


class Cancelling(FedAvg):
    """Takes the step's own gradient away from it: nothing is left if both have the same draws."""

    after: ClassVar[bool] = False

    def rules(self):
        return Rules(transforms=(Transform("cancel", self.cancel, after_momentum=self.after),))

    def cancel(self, view, gradients, batch, state):
        here = view.gradient(view.params, batch)
        return {name: gradient - here[name] for name, gradient in gradients.items()}, state


class CancellingLater(Cancelling):
    """Does so behind the momentum, which is outside of what is recorded."""

    after: ClassVar[bool] = True


def train(folder, method, *, local, epochs=4, stack=4, size=16):
    own = {"fraction": 1.0, "engine.vectorize": stack, "local.epochs": epochs, "rounds": 2, **local}
    task, said = make_task((size,) * 4, Dropping), Notes()
    return task, raysim.run(settings_for(method, folder, **own), task, said).params, said.notes


MOMENTUM = {"local.momentum": 0.5}
CONSTANT = {"method.step": "constant"}
CASES = [
    ("fedavg", {}),
    ("fsvrg", {}),
    ("fsvrg", CONSTANT | MOMENTUM),
    ("scaffold", {}),
    (f"{__name__}:CancellingLater", {}),
    (f"{__name__}:CancellingLater", MOMENTUM),
]


@pytest.mark.parametrize(("method", "local"), CASES)
def test_a_recorded_step_draws_what_the_step_draws(tmp_path, monkeypatch, generator, method, local):
    _, recorded, notes = train(tmp_path / "recorded", method, local=local)
    assert Tape.played and not [note for note in notes if "not recorded" in note]
    monkeypatch.setattr(RECORDER_ON, lambda device, note: None)
    _, plain, _ = train(tmp_path / "plain", method, local=local)
    assert difference(plain, recorded) == 0


@pytest.mark.parametrize(("method", "is_recorded"), [("fsvrg", False), ("scaffold", True)])
def test_older_torch_refuses_to_record_another_gradient(
    tmp_path, monkeypatch, generator, method, is_recorded
):
    monkeypatch.setattr(Generator, "in_recordings", False)
    _, found, notes = train(tmp_path / "found", method, local={})
    said = "steps are not recorded as CUDA graphs: Cannot call CUDAGeneratorImpl::current_seed"
    assert bool(Tape.played) == is_recorded and (said in notes) == (not is_recorded)
    monkeypatch.setattr(RECORDER_ON, lambda device, note: None)
    _, plain, _ = train(tmp_path / "plain", method, local={})
    assert difference(plain, found) == 0


@pytest.mark.parametrize("stack", [0, 4])
@pytest.mark.parametrize(
    ("method", "local"),
    [("Cancelling", {}), ("CancellingLater", {}), ("CancellingLater", MOMENTUM)],
)
def test_another_gradient_has_the_draws_of_the_step(tmp_path, method, local, stack):
    """With one step, whose momentum is the gradient."""
    local = {"local.batch_size": "full", "rounds": 1, **local}
    task, found, _ = train(tmp_path, f"{__name__}:{method}", local=local, epochs=1, stack=stack)
    for name, expected in zip(NAMES, start_of(task), strict=True):
        assert torch.allclose(found[name].double(), torch.tensor(expected), rtol=0, atol=1e-7)
