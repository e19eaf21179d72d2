"""Clients trained together end where they end one at a time, for every method and model family."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import nn

import raysim
from raysim.api.method import METHODS
from raysim.api.rules import Rules
from raysim.errors import RunError
from raysim.methods.fedavg import FedAvg
from raysim.methods.scaffold import Scaffold
from raysim.testing.tasks import SmallNet, small_task
from raysim.training.sequential import SequentialTrainer
from raysim.training.stacked.cuda_graphs import (
    CudaGraphs,
    GraphedSteps,
    GraphRecorder,
    recorder_on,
)
from raysim.training.stacked.stack_size import unsupported_reason
from raysim.training.stacked.stacks import assign
from raysim.training.stacked.trainer import _StackedTraining
from tests.adapters import task_for
from tests.methods.test_contract import UNSUPPORTED, settings_for
from tests.tasks import Notes, make_task
from tests.training.stacked.test_cuda_graphs import GPU, Tape, cuda  # noqa: F401

RECORDER_ON = "raysim.training.stacked.trainer.recorder_on"
TOGETHER = [
    (method, family)
    for method in sorted(METHODS)
    for family in ("mlp", "cnn", "residual")
    if (method, family) not in UNSUPPORTED
    # From fedasync's second round on, one client starts at a time.
    and method not in ("centralized", "fedasync")
]
SIZES = (1, 9, 30, 17, 24, 12, 16)  # with B=8: 1 to 4 steps, full and partial batches
QUICK = [("fedavg", "residual"), ("scaffold", "cnn"), ("momentum", "mlp"), ("fedmax", "cnn")]
MLP = [pair for pair in TOGETHER if pair[1] == "mlp"]


def every_pair(*quick):
    """Test all pairs, most of them with -m full, and those that are named besides."""
    pairs = [*TOGETHER, *(pair for pair in quick if pair not in TOGETHER)]
    marks = {pair: [] if pair in quick else pytest.mark.full for pair in pairs}
    params = [pytest.param(*pair, marks=marks[pair]) for pair in pairs]
    return pytest.mark.parametrize(("method", "family"), params)


def run(folder, method, family, together, **overrides):
    settings = settings_for(
        method,
        folder / str(together),
        # With seed 0 an input of FSVRG's residual network comes to lie on the edge of a ReLU.
        **{"fraction": 1.0, "local.epochs": 2, "engine.vectorize": together, "seed": 1} | overrides,
    )
    dropping = family == "dropping"
    task = make_task(SIZES, Dropping) if dropping else small_task(family, SIZES)
    return raysim.run(settings, task_for(method, task), notes := Notes()), notes.notes


class Dropping(SmallNet):
    """Draws random numbers in its steps."""

    def __init__(self):
        super().__init__()
        self.hidden.append(nn.Dropout(0.3))


def difference(first, second):
    assert first.keys() == second.keys()
    return max(float((first[n].double() - second[n].double()).abs().max()) for n in first)


@pytest.fixture
def no_loop(monkeypatch):
    """Let nobody be trained alone, so that falling back cannot pass for training together."""

    def refuse(self, job):
        assert not job.epochs, "trained alone"
        return run_loop(self, job)

    run_loop = SequentialTrainer.run
    return lambda: monkeypatch.setattr(SequentialTrainer, "run", refuse)


def stack_sizes(monkeypatch):
    """Return a list to which every stack that is trained adds its number of clients."""

    def start(self, trainer, jobs, *more, **named):
        sizes.append(len(jobs))
        init(self, trainer, jobs, *more, **named)

    sizes, init = [], _StackedTraining.__init__
    monkeypatch.setattr(_StackedTraining, "__init__", start)
    return sizes


def assert_same(alone, together):
    assert difference(alone.params, together.params) < 1e-4
    for name in ("train_loss", "objective", "bytes_up", "bytes_down", "clients"):
        expected = alone.metrics[name].to_pylist()
        assert together.metrics[name].to_pylist() == pytest.approx(expected, rel=1e-3), name


@every_pair(*QUICK, *MLP, ("mifl", "cnn"))  # whose state is in another memory layout
def test_together_is_one_at_a_time(tmp_path, no_loop, method, family):
    epochs = {"local.epochs": 1 if family == "mlp" else 2}
    alone, _ = run(tmp_path, method, family, 0, **epochs)
    no_loop()
    together, notes = run(tmp_path, method, family, 7 if family == "mlp" else 4, **epochs)
    assert not [note for note in notes if note.startswith("engine.vectorize")]
    assert_same(alone, together)


@pytest.mark.parametrize("method", ["mifl", "scaffold", "fedma"])
def test_newcomers_train_beside_clients_that_keep_state(tmp_path, no_loop, method):
    few = {"fraction": 0.6, "rounds": 3}
    alone, _ = run(tmp_path, method, "mlp", 0, **few)
    no_loop()
    assert_same(alone, run(tmp_path, method, "mlp", 4, **few)[0])


@pytest.mark.parametrize(
    "local",
    [
        {"local.momentum": 0.9, "local.nesterov": True, "local.weight_decay": 0.01},
        {"local.momentum": 0.5, "local.temperature": 0.5},
        {"local.batch_size": "full"},
    ],
)
@pytest.mark.parametrize("method", ["fedavg", "fsvrg"])
def test_every_local_setting(tmp_path, no_loop, method, local):
    local |= {"method.step": "constant"} if method == "fsvrg" else {}
    alone, _ = run(tmp_path, method, "residual", 0, **local)
    no_loop()
    assert_same(alone, run(tmp_path, method, "residual", 7, **local)[0])


def test_same_bits_on_actors(tmp_path, resident_actors):
    task, models = small_task("cnn", SIZES), []
    for backend in ("inline", "ray"):
        overrides = {"engine.backend": backend, "engine.actors": 2, "engine.vectorize": 3}
        result = raysim.run(settings_for("scaffold", tmp_path / backend, **overrides), task)
        models.append((result.run_dir / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_a_network_that_cannot_is_said_once(tmp_path):
    alone, _ = run(tmp_path, "fedavg", "lstm", 0)
    together, notes = run(tmp_path, "fedavg", "lstm", 3)
    assert difference(alone.params, together.params) == 0
    (note,) = notes
    assert note.startswith("engine.vectorize=3: clients are trained one at a time: LSTM")


class Branching(FedAvg):
    """Looks at a tensor's value, as rules must not."""

    def rules(self):
        return raysim.Rules(penalties=(_branch,))


def _branch(view, outputs, batch):
    mean = outputs.logits.mean()
    return mean if mean > 0 else -mean


def test_rules_that_cannot_are_said_once(tmp_path):
    method = "tests.training.stacked.test_trainer:Branching"
    alone, _ = run(tmp_path, method, "mlp", 0)
    together, notes = run(tmp_path, method, "mlp", 3)
    assert difference(alone.params, together.params) == 0
    (note,) = notes
    assert note.startswith(
        "engine.vectorize=3: clients are trained one at a time: vmap: It looks like"
    )


def test_a_bad_client_does_not_take_its_group_along(tmp_path):
    task = small_task("mlp", SIZES)
    task.clients[2][0][0, :] = 3e38
    few = {"fraction": 1.0, "on_client_error": "drop", "engine.vectorize": 7}
    notes = Notes()
    result = raysim.run(settings_for("fedavg", tmp_path, **few), task, notes)
    assert result.metrics["clients"].to_pylist() == [6, 6]
    assert [note.split(":")[1] for note in notes.notes] == [" client 2 was dropped"] * 2


class Unequal(FedAvg):
    """Clients train for 0, 1 or 2 epochs, at learning rates of their own."""

    least: ClassVar[int] = 0

    def training_pass(self, now, state):
        work = super().training_pass(now, state)
        epochs = {client: max(client % 3, self.least) for client in now.cohort}
        return replace(work, epochs=epochs, lr={client: 0.05 + client / 100 for client in epochs})


class UnequalScaffold(Unequal, Scaffold):
    """Clients train for 1 or 2 epochs; what they upload depends on their learning rates."""

    least: ClassVar[int] = 1


@pytest.mark.parametrize(
    ("method", "local", "sizes"),
    [
        ("Unequal", {}, [2, 2]),
        ("Unequal", {"local.momentum": 0.5, "local.nesterov": True}, [2, 2]),
        ("UnequalScaffold", {}, [5, 2]),
    ],
)
def test_clients_of_unequal_work_are_stacked_too(
    tmp_path, monkeypatch, no_loop, method, local, sizes
):
    method = f"tests.training.stacked.test_trainer:{method}"
    alone, _ = run(tmp_path, method, "mlp", 0, **local)
    no_loop()
    stacks = stack_sizes(monkeypatch)
    together, notes = run(tmp_path, method, "mlp", 7, **local)
    assert not notes
    assert_same(alone, together)
    assert stacks[-2:] == sizes  # those of one epoch, those of two


def test_clients_whose_learning_rates_depend_on_their_samples_share_a_stack(tmp_path, monkeypatch):
    stacks = stack_sizes(monkeypatch)
    run(tmp_path, "fsvrg", "mlp", 7)
    assert stacks[-1] == 7


def test_batchnorm_without_momentum_is_no_group():
    assert "has no momentum" in unsupported_reason(nn.Sequential(nn.BatchNorm1d(3, momentum=None)))
    assert unsupported_reason(nn.Sequential(nn.BatchNorm1d(3))) is None


@pytest.fixture
def often(monkeypatch):
    """Let steps be recorded that come six times; return settings under which they do."""
    monkeypatch.setattr("raysim.training.stacked.cuda_graphs.MIN_REPLAYS", 3)
    return {"local.epochs": 6}


@every_pair(*QUICK)
def test_a_recorded_step_is_the_step(tmp_path, monkeypatch, no_loop, often, method, family):
    """Over six epochs: by then clients trained one by one may differ in more than last bits."""
    no_loop()
    plain, _ = run(tmp_path / "plain", method, family, 7, **often)
    monkeypatch.setattr(RECORDER_ON, lambda device, note: GraphRecorder(Tape, note))
    monkeypatch.setattr(Tape, "played", 0)
    recorded, _ = run(tmp_path / "recorded", method, family, 7, **often)
    assert Tape.played
    assert difference(plain.params, recorded.params) == 0


@pytest.fixture
def tapes(monkeypatch):
    """Record steps that come five times in all; return the tapes, each with the calls it played."""
    made = []

    class Counted(Tape):
        def __init__(self, *given):
            super().__init__(*given)
            self.played = 0
            made.append(self)

        def __call__(self, inputs):
            self.played += 1
            return super().__call__(inputs)

    monkeypatch.setattr("raysim.training.stacked.cuda_graphs.MIN_REPLAYS", 2)
    monkeypatch.setattr(RECORDER_ON, lambda device, note: GraphRecorder(Counted, note))
    return made


STACKED = {"fraction": 1.0, "engine.vectorize": 4}
DECAY = {"local.lr_decay": 0.7}
MOMENTUM = {"local.momentum": 0.5, "local.nesterov": True, "local.weight_decay": 0.01}


@pytest.mark.parametrize(
    ("method", "local", "sizes"),
    [
        ("fedavg", DECAY, {4, 3}),
        ("fedavg", DECAY | MOMENTUM, {4, 3}),
        ("fedmax", {}, {4, 3}),
        ("scaffold", {}, {4, 3}),
        ("scaffold", MOMENTUM, {4, 3}),
        ("feddyn", {}, {4, 3}),
        ("ditto", {}, {4, 3}),
        ("mifl", {}, {4, 3}),
        (f"{__name__}:Unequal", {"engine.vectorize": 7}, {2}),
    ],
)
def test_recordings_are_played_for_later_groups(tmp_path, monkeypatch, tapes, method, local, sizes):
    """Groups of two steps a client, of a network with dropout; the last has two in a stack."""

    def train(name, rounds):
        own = {**STACKED, "local.epochs": 1, "rounds": rounds, **local}
        settings = settings_for(method, tmp_path / name, **own)
        result = raysim.run(settings, make_task((16,) * 7, Dropping))
        return result.params, result.metrics.select(["train_loss", "objective"])

    params, losses = train("recorded", 6)
    recorded, calls = len(tapes), sum(tape.played for tape in tapes)
    assert {len(tape.inputs["y"]) for tape in tapes} == sizes and calls > recorded
    monkeypatch.setattr(RECORDER_ON, lambda device, note: None)
    plain, expected = train("plain", 6)
    assert difference(params, plain) == 0 and losses.equals(expected)
    assert len(tapes) == recorded


def test_no_step_is_recorded_twice(tmp_path, tapes):
    for rounds in (4, 9):
        tapes.clear()
        run(tmp_path / str(rounds), "fedmax", "mlp", 4, rounds=rounds, **{"local.epochs": 1})
        found = len(tapes)
        assert found == len({(*(i.shape for i in tape.inputs.values()),) for tape in tapes})
    assert sum(tape.played for tape in tapes) > 4 * found


def test_kept_tensors_make_room_for_a_group(tmp_path, monkeypatch, tapes):
    """The group is trained again: with the same draws, and to the same bits."""
    own = {"local.epochs": 1, "rounds": 5}
    task = make_task((16,) * 7, Dropping)

    def train(name):
        settings = settings_for("fedavg", tmp_path / name, **own, **STACKED)
        return raysim.run(settings, task, said := Notes()), said.notes

    steps, failing, played = [], [], []
    take = GraphedSteps.__call__

    def fail_once(self, *given):
        steps.append(1)
        if failing and len(steps) == failing[0]:
            played.append(sum(tape.played for tape in tapes))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return take(self, *given)

    monkeypatch.setattr(GraphedSteps, "__call__", fail_once)
    (expected, none), count = train("roomy"), len(steps)
    steps.clear()
    failing.append(count - 2)  # the second of two steps
    found, said = train("short")
    assert difference(expected.params, found.params) == 0
    assert len(steps) == count + 2
    assert played == [sum(tape.played for tape in tapes)] and played[0]  # none since
    assert not none and said == [
        "steps are not recorded as CUDA graphs: there is no memory for their tensors"
    ]


def test_steps_that_cannot_be_recorded_are_said_once(tmp_path, monkeypatch, often):
    def refuse(step, inputs):
        raise RuntimeError("not while a stream is captured")

    alone, _ = run(tmp_path, "fedavg", "mlp", 0, **often)
    monkeypatch.setattr(RECORDER_ON, lambda device, note: GraphRecorder(refuse, note))
    together, notes = run(tmp_path, "fedavg", "mlp", 7, **often)
    said = "steps are not recorded as CUDA graphs: not while a stream is captured"
    assert notes == [said]
    assert_same(alone, together)


class Reading(FedAvg):
    """Its step reads a value of what the server sent."""

    def rules(self):
        return Rules(penalties=(self.penalty,))

    def penalty(self, view, outputs, batch):
        sent = next(iter(view.broadcast["model"].values()))
        return float(sent.square().sum()) * batch.mean(outputs.logits.square().mean(-1))


def test_a_method_that_waits_for_the_device_is_trained_plainly(tmp_path, monkeypatch, cuda, often):  # noqa: F811
    method = f"{__name__}:Reading"
    plain, _ = run(tmp_path / "plain", method, "mlp", 7, **often)
    monkeypatch.setattr(RECORDER_ON, lambda device, note: recorder_on(GPU, note))
    monkeypatch.setattr(CudaGraphs, "stream_context", nullcontext)
    found, notes = run(tmp_path / "recorded", method, "mlp", 7, **often)
    assert difference(plain.params, found.params) == 0
    assert len(notes) == 1 and "Reading.penalty (test_trainer.py, line" in notes[0]


@pytest.mark.parametrize(("method", "family"), QUICK)
def test_a_run_leaves_nothing_to_the_garbage_collector(tmp_path, monkeypatch, method, family):
    left = []

    def start(self, trainer, jobs, *more, **named):
        init(self, trainer, jobs, *more, **named)
        left.extend(map(weakref.ref, [self, trainer, *self.tensors.values()]))

    init = _StackedTraining.__init__
    monkeypatch.setattr(_StackedTraining, "__init__", start)
    monkeypatch.setattr(RECORDER_ON, lambda device, note: GraphRecorder(Tape, note))
    gc.disable()
    try:
        run(tmp_path, method, family, 7)
        assert left and not any(reference() is not None for reference in left)
    finally:
        gc.enable()


def test_values_are_assigned_as_they_were_and_keep_their_dtypes():
    first, second = torch.zeros(2), torch.ones(2)
    assign({"own": {"a": first, "b": second}}, {"own": {"b": first, "a": second}})
    assert first.tolist() == [1, 1] and second.tolist() == [0, 0]
    with pytest.raises(RunError, match="the next state 'a' of 'own' is"):
        assign({"own": {"a": first}}, {"own": {"a": first.double()}})
