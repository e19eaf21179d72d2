"""Runs in lockstep end where they end one by one, up to rounding; what sets them apart is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import raysim
from raysim.core.errors import MachineError
from raysim.core.rules import Pass
from raysim.core.tensors import add_scaled
from raysim.execution.client_jobs import ClientJobs
from raysim.execution.lockstep import Lockstep
from raysim.execution.worker import Worker
from raysim.federation.opened import OpenedSamples
from raysim.methods.fedavg import FedAvg
from raysim.testing.tasks import SmallNet
from raysim.training.sequential import SequentialTrainer
from raysim.training.stacked.trainer import StackedTrainer
from tests.tasks import UNEQUAL, make_settings, make_task, model_of

FIGURES = ("train_loss", "objective", "test_loss", "test_accuracy", "bytes_up", "clients")


class Smooth(SmallNet):
    """No ReLU, on whose edge the rounding of a stack would be the beginning of another run."""

    def __init__(self):
        super().__init__()
        for stage in (self.features, self.hidden):
            for name, layer in [*stage.named_children()]:
                if isinstance(layer, torch.nn.ReLU):
                    setattr(stage, name, torch.nn.Tanh())


def task():
    return make_task(UNEQUAL, Smooth)


def steps_of(settings: raysim.Settings) -> Any:
    return raysim.steps(settings, task())


def begin(runs: Lockstep[Any], number: int, settings: raysim.Settings) -> None:
    runs.start(number, settings.engine, steps_of(settings))


def drain(runs: Lockstep[Any]) -> list[dict[int, int]]:
    """Advance runs to their ends; return the rounds that were done together."""
    found = []
    while steps := runs.advance():
        found.append({number: row["round"] for number, row in steps.items()})
    return found


def settings_of(folder, **overrides):
    return make_settings(folder, **{"rounds": 3, "local.lr": 0.1} | overrides)


def sweep(tmp_path, key, values, **overrides):
    return [settings_of(tmp_path / f"{n}", **overrides | {key: v}) for n, v in enumerate(values)]


def together(settings) -> Lockstep[Any]:
    """Run in lockstep, to the end."""
    runs: Lockstep[Any] = Lockstep(len(settings))
    for number, each in enumerate(settings):
        begin(runs, number, each)
    drain(runs)
    return runs


def stacked_with(settings):
    """Return of each run the most runs that its clients were stacked with."""
    found = [json.loads((run(s) / "environment.json").read_text()) for s in settings]
    assert {each["stack"] for each in found} <= {len(settings)}
    return [each["stacked_with"] for each in found]


def run(settings):
    return Path(settings.out)


def alone(settings):
    """Run the settings by themselves; return the run directory."""
    out = run(settings).with_name(f"{run(settings).name}-alone")
    raysim.run(settings.override({"out": str(out)}), task())
    return out


def assert_as_alone(settings):
    for each in settings:
        folders = run(each), alone(each)
        found, expected = (pq.read_table(f / "metrics.parquet").to_pydict() for f in folders)
        for name in FIGURES:
            assert found[name] == pytest.approx(expected[name], rel=1e-4), name
        one, other = (load_file(f / "model.safetensors") for f in folders)
        for name, tensor in other.items():
            torch.testing.assert_close(one[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.fixture
def no_loop(monkeypatch):
    """Let no client be trained alone, so that falling back cannot pass for a stack."""

    def refuse(self, job):
        assert not job.epochs, "trained alone"
        return run_loop(self, job)

    run_loop = SequentialTrainer.run
    with monkeypatch.context() as patch:
        patch.setattr(SequentialTrainer, "run", refuse)
        yield patch


class Finishing(FedAvg):
    """Takes one more step at the end, along a gradient that has the weight decay."""

    def rules(self):
        return raysim.Rules(finish=_finish)


def _finish(view, trained):
    gradient = view.gradient(view.params, trained.data)
    return raysim.Upload(sums={"model": add_scaled(view.params, gradient, -0.1)})


FINISHING = {"method.name": "tests.execution.test_lockstep:Finishing"}
APFL = {"method.name": "apfl", "method.adaptive": True}
SWEEPS = {
    "finish": ("local.weight_decay", (0.0, 0.5), FINISHING),
    "lr": ("local.lr", (0.1, 0.02, 0.3), {}),
    "temperature": ("local.temperature", (1.0, 0.5, 4.0), {}),
    "momentum": ("local.momentum", (0.9, 0.5, 0.3), {"local.nesterov": True}),
    "decay": ("local.weight_decay", (0.0, 0.01, 0.1), {"local.momentum": 0.5}),
    "mu": ("method.mu", (0.0, 0.1, 1.0), {"method.name": "fedprox"}),
    "mean": ("method.mu", (1.0, 40.0), {"method.name": "fedprox", "method.reduction": "mean"}),
    "beta": ("method.beta", (0.5, 5.0), {"method.name": "fedmax", "engine.vectorize": 2}),
    "gradient": ("local.weight_decay", (0.0, 0.1), {"method.name": "fsvrg"}),
    "alpha": ("method.alpha", (0.1, 1.0), {"method.name": "feddyn"}),
    "server": ("method.lr_global", (0.5, 1.0), {"method.name": "scaffold", "fraction": 0.4}),
    "two passes": ("local.lr", (0.1, 0.05), {"method.name": "mifl", "local.temperature": 2.0}),
    "personal": ("method.lam", (0.1, 1.0), {"method.name": "ditto"}),
    "envelope": ("method.lam", (1.0, 15.0), {"method.name": "pfedme"}),
    "meta": ("method.alpha", (0.01, 0.3), {"method.name": "per_fedavg", "method.hessian": "exact"}),
    "companion": ("local.lr", (0.1, 0.02), {**APFL, "local.momentum": 0.5}),
    "mixture": ("method.alpha", (0.2, 0.9), {**APFL, "method.mixture": "outputs"}),
}
QUICK = ("finish", "lr", "temperature", "mu", "beta", "momentum")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in SWEEPS]
)
def test_runs_that_differ_in_a_number(tmp_path, no_loop, name):
    key, values, overrides = SWEEPS[name]
    settings = sweep(tmp_path, key, values, **overrides)
    assert together(settings).notes == []
    assert stacked_with(settings) == [len(values)] * len(values)
    no_loop.undo()
    assert_as_alone(settings)


def test_runs_that_differ_in_more_are_trained_apart(tmp_path):
    settings = [
        settings_of(tmp_path / "0", **{"local.lr": 0.1}),
        settings_of(tmp_path / "1", **{"local.lr": 0.2}),
        settings_of(tmp_path / "2", **{"local.batch_size": 4}),
        settings_of(tmp_path / "3", **{"method.name": "fedprox"}),
    ]
    first, second = together(settings).notes
    apart = "trials of one slot are not stacked where "
    assert first == f"{apart}local.batch_size differs (8, 4)"
    assert second.startswith(f"{apart}method differs (FedAvg(")
    assert stacked_with(settings) == [2, 2, 1, 1]
    assert_as_alone(settings)


class Branching(FedAvg):
    """Looks at its number, as rules must not where it is a tensor."""

    beta: float = 1.0

    def rules(self):
        return raysim.Rules(penalties=(self._penalty,))

    def _penalty(self, view, outputs, batch):
        return outputs.logits.square().mean() if self.beta > 0.5 else outputs.logits.mean()


def test_a_method_that_cannot_be_stacked_is_trained_one_run_after_another(tmp_path):
    name = {"method.name": "tests.execution.test_lockstep:Branching"}
    settings = sweep(tmp_path, "method.beta", (0.1, 1.0), **name)
    (note,) = together(settings).notes
    assert note.startswith("trials are trained one at a time: vmap: It looks like you're attempt")
    assert stacked_with(settings) == [1, 1]
    for each in settings:
        assert model_of(run(each)) == model_of(alone(each))


class Leaking(FedAvg):
    """Wraps the network with an activation, by a number of its own."""

    slope: float = 0.5

    def network(self, model):
        model.hidden.append(torch.nn.LeakyReLU(self.slope))
        return model


def test_runs_whose_networks_differ_are_trained_apart(tmp_path):
    name = {"method.name": "tests.execution.test_lockstep:Leaking"}
    settings = sweep(tmp_path, "method.slope", (0.1, 0.5, 0.1), **name)
    (note,) = together(settings).notes
    assert note.startswith("trials of one slot are not stacked where module hidden.")
    assert stacked_with(settings) == [2, 1, 2]


@pytest.mark.parametrize("network", ["lstm"])
def test_networks_that_cannot_be_stacked(tmp_path, monkeypatch, network):
    monkeypatch.setattr(
        "raysim.execution.lockstep.unsupported_reason", lambda module: f"{network} has no kernel"
    )
    settings = sweep(tmp_path, "local.lr", (0.1, 0.2), rounds=1)
    assert together(settings).notes == [
        f"trials are trained one at a time: {network} has no kernel"
    ]
    assert stacked_with(settings) == [1, 1]


def test_runs_share_the_memory_by_which_clients_are_stacked(tmp_path, monkeypatch):
    about = Worker.about
    monkeypatch.setattr(Worker, "about", lambda self: {**about(self), "memory": 1001})
    settings = sweep(tmp_path, "local.lr", (0.1, 0.2), rounds=1)
    together(settings)
    (actor,) = json.loads((run(settings[0]) / "environment.json").read_text())["actors"]
    assert actor["memory"] == 500


def test_a_run_that_fails_leaves_the_others(tmp_path):
    settings = sweep(tmp_path, "local.lr", (0.1, 3e38, 0.2))
    runs: Lockstep[Any] = Lockstep(3)
    failed: list[str] = []

    def caught(number):
        try:
            yield from steps_of(settings[number])
        except raysim.RunError as error:
            failed.append(str(error))

    for number, each in enumerate(settings):
        runs.start(number, each.engine, caught(number))
    assert drain(runs) == [{0: 1, 2: 1}, {0: 2, 2: 2}, {0: 3, 2: 3}]
    (error,) = failed
    assert "its update is not finite" in error
    assert_as_alone([settings[0], settings[2]])


def test_a_client_that_fails_is_tried_again_by_its_run_alone(tmp_path, monkeypatch):
    """Its stack goes on without those of other runs; the run retries, and then drops it."""

    def job(self, message, client):
        if client == 4 and self._settings.local.lr == 0.2:
            raise ValueError("no data")
        return made(self, message, client)

    made = ClientJobs.job
    monkeypatch.setattr(ClientJobs, "job", job)
    settings = sweep(tmp_path, "local.lr", (0.1, 0.2, 0.3), on_client_error="drop", fraction=1.0)
    together(settings)
    assert_as_alone(settings)
    trained = pq.read_table(run(settings[1]) / "metrics.parquet")["clients"].to_pylist()
    assert trained == [5, 5, 5]


class TwoPasses(FedAvg):
    """Trains the whole cohort, then the first of it once more, by other rules."""

    beta: float = 0.1

    def round(self, now, state):
        first, _ = yield from super().round(now, state)
        again = Pass(now.cohort[:2], {"model": first.groups["model"]}, self._again(), 1, now.lr)
        return first.replace(model=(yield again).means["model"]), {}

    def _again(self):
        return raysim.Rules(penalties=(self._penalty,))

    def _penalty(self, view, outputs, batch):
        return self.beta * batch.mean(outputs.logits.square().mean(dim=1))


@pytest.mark.parametrize("method", ["fedavg", "tests.execution.test_lockstep:TwoPasses"])
def test_runs_that_begin_later_join_those_in_their_pass(tmp_path, method):
    name = {"method.name": method}
    settings = sweep(tmp_path, "local.lr", (0.1, 0.2), rounds=4, **name)
    runs: Lockstep[Any] = Lockstep(2)
    begin(runs, 0, settings[0])
    assert [*runs.advance()] == [0] and [*runs.advance()] == [0]
    begin(runs, 1, settings[1])
    assert drain(runs) == [{0: 3, 1: 1}, {0: 4, 1: 2}, {1: 3}, {1: 4}]
    assert runs.notes == []
    assert stacked_with(settings) == [2, 2]
    assert_as_alone(settings)


def test_a_run_that_is_stopped_goes_on_in_another_lockstep(tmp_path):
    settings = sweep(tmp_path, "local.lr", (0.1, 0.2), rounds=4, checkpoint_every=100)
    runs: Lockstep[Any] = Lockstep(2)
    for number, each in enumerate(settings):
        begin(runs, number, each)
    runs.advance()
    runs.stop(1)
    assert drain(runs) == [{0: 2}, {0: 3}, {0: 4}]
    again: Lockstep[Any] = Lockstep(2)
    begin(again, 0, settings[1])
    assert drain(again) == [{0: 2}, {0: 3}, {0: 4}]
    assert_as_alone(settings)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("CUDA error: an illegal memory access\nmore"), "the GPU fails at train"),
        (MachineError("a step ends its recording"), "a step ends its recording"),
    ],
)
def test_a_gpu_that_fails_ends_all_runs_of_its_stack_resumably(tmp_path, monkeypatch, error, said):
    settings = sweep(tmp_path, "local.lr", (0.1, 0.2))
    runs: Lockstep[Any] = Lockstep(2)
    errors: list[str] = []

    def caught(number):
        try:
            yield from steps_of(settings[number])
        except MachineError as ended:
            errors.append(str(ended))

    def fail(self, *given, **named):
        raise error

    opened: list[int] = []

    class Noted(OpenedSamples):
        def __init__(self, federation, device, runs):
            super().__init__(federation, device, runs)
            opened.append(runs)

    monkeypatch.setattr("raysim.execution.worker.OpenedSamples", Noted)
    for number, each in enumerate(settings):
        runs.start(number, each.engine, caught(number))
    runs.advance()
    assert opened == [2, 2]  # which share the memory of a GPU
    with monkeypatch.context() as patch:
        patch.setattr(StackedTrainer, "run", fail)
        assert drain(runs) == []
    assert len(errors) == 2 and all(said in each for each in errors)
    assert together(settings).notes == []
    assert_as_alone(settings)


def test_an_interruption_checkpoints_all_runs(tmp_path, monkeypatch):
    settings = sweep(tmp_path, "local.lr", (0.1, 0.2), checkpoint_every=100)
    runs: Lockstep[Any] = Lockstep(2)
    for number, each in enumerate(settings):
        begin(runs, number, each)
    runs.advance()

    def interrupt(self, *given, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StackedTrainer, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            runs.advance()
    for each in settings:
        assert [path.name for path in (run(each) / "checkpoints").iterdir()] == ["round_000001"]
    assert runs.advance() == {}
