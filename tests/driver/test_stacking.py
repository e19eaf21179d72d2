"""Decision on stacked training: made once, sealed in the checkpoint, without a trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.driver.rounds.local_values import RoundValues
from raysim.driver.rounds.selecting import sampling_of
from raysim.driver.start.checks.preflight import initial_checkpoint
from raysim.driver.start.stacking import decide_stack_size
from raysim.execution.client_jobs import ClientJobs
from raysim.execution.worker import Worker
from raysim.federation.federation import Federation
from raysim.federation.task import from_task
from raysim.methods.fedavg import FedAvg
from raysim.testing.tasks import SmallNet, small_task
from raysim.training.stacked.trainer import StackedTrainer
from tests.tasks import Notes, StopAfter, make_settings, make_task, model_of

SIZES = (9, 20, 12, 17, 24, 12)
MUCH = 10**12
"""Bytes of memory in which every client fits."""


class DropNet(SmallNet):
    """A network whose random draws depend on who is stacked with whom."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.5))


class Branching(FedAvg):
    """FedAvg with a penalty that branches on a tensor's value."""

    def rules(self) -> raysim.Rules:
        def penalty(view: raysim.View, outputs: raysim.Outputs, batch: raysim.Batch) -> Tensor:
            total = outputs.logits.square().mean()
            return total if total > 1 else total * 2

        return raysim.Rules(penalties=(penalty,))


class Everything(Notes):
    """Keeps notes, and the start and the rounds among them."""

    def started(self, run: raysim.Started) -> None:
        self.notes.append("started")

    def round_done(self, row: Any) -> None:
        self.notes.append(f"round {row['round']}")


def stacked(out: Path, vectorize: Any = 3, **overrides: Any) -> raysim.Settings:
    options = {"engine.vectorize": vectorize, "rounds": 2, "fraction": 1.0, "clients": len(SIZES)}
    return make_settings(out, **options | overrides)


def sealed(run: Path, number: int) -> int:
    return json.loads((run / f"checkpoints/round_{number:06d}/state.json").read_text())[
        "stack_size"
    ]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have workers report a device's memory."""
    about = Worker.about

    def report(memory: int) -> None:
        monkeypatch.setattr(
            Worker, "about", lambda self, *gpus: about(self, *gpus) | {"memory": memory}
        )

    return report


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the sizes of the groups that are trained stacked."""
    seen: list[int] = []
    train = StackedTrainer.run

    def run(self: StackedTrainer, jobs: Any) -> Any:
        seen.append(len(jobs))
        return train(self, jobs)

    monkeypatch.setattr(StackedTrainer, "run", run)
    return seen


def test_the_checkpoint_seals_the_decision(tmp_path, memory, groups):
    task = make_task(SIZES, DropNet)
    memory(MUCH)
    raysim.run(stacked(tmp_path / "whole", "auto"), task)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(stacked(tmp_path / "cut", "auto"), task, StopAfter(1))
    assert sealed(tmp_path / "cut", 1) == len(SIZES)
    memory(1)
    groups.clear()
    raysim.resume(tmp_path / "cut", task)
    assert groups == [len(SIZES)] and sealed(tmp_path / "cut", 2) == len(SIZES)
    assert model_of(tmp_path / "cut") == model_of(tmp_path / "whole")
    raysim.run(stacked(tmp_path / "little", "auto"), task)  # as it would be decided now
    assert sealed(tmp_path / "little", 2) == 1
    assert model_of(tmp_path / "little") != model_of(tmp_path / "whole")


def test_rules_that_cannot_be_stacked_are_noted_once_before_the_first_round(tmp_path, groups):
    name = {"method.name": f"{__name__}:Branching"}
    listener, task = Everything(), make_task(SIZES)
    raysim.run(stacked(tmp_path / "asked", **name), task, listener)
    note, *others = listener.notes
    assert note.startswith("engine.vectorize=3: clients are trained one at a time: ")
    assert len(note.splitlines()) == 1
    assert others == ["started", "round 1", "round 2"]
    assert sealed(tmp_path / "asked", 2) == 1 and groups == []
    raysim.run(stacked(tmp_path / "loop", 0, **name), task)
    assert model_of(tmp_path / "asked") == model_of(tmp_path / "loop")


def decided(settings: raysim.Settings, federation: Federation, note: Any = print) -> Any:
    network, first = initial_checkpoint(settings, federation)
    before = snapshot(network, first.state.groups)
    sampling = sampling_of(settings, first, federation.training_sizes, None)
    size = decide_stack_size(
        settings,
        federation,
        network,
        first,
        values=RoundValues.of(settings, sampling, first),
        describe=lambda: {"actors": [{"memory": MUCH}]},
        note=note,
    )
    return size, before, snapshot(network, first.state.groups)


def snapshot(network: nn.Module, groups: raysim.numbers.tensors.Groups) -> Any:
    """Return the bytes of a network and of the server's groups, and the network's modes."""
    sets = {"network": network.state_dict(), **groups}
    return (
        {(name, n): t.numpy().tobytes() for name, each in sets.items() for n, t in each.items()},
        [(module.training, len(module._forward_hooks)) for module in network.modules()],
        [parameter.requires_grad for parameter in network.parameters()],
        [parameter.grad for parameter in network.parameters()],
    )


@pytest.mark.parametrize("vectorize", [2, "auto"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "mifl", "fsvrg"])
def test_the_check_leaves_no_trace(tmp_path, monkeypatch, groups, method, vectorize):
    monkeypatch.chdir(tmp_path)
    settings = stacked(tmp_path / "run", vectorize, **{"method.name": method})
    random = torch.get_rng_state()
    size, before, after = decided(settings, from_task(make_task(SIZES, DropNet)))
    assert size == (2 if vectorize == 2 else len(SIZES))
    assert groups and {*groups} == {2}
    assert after == before
    assert torch.equal(torch.get_rng_state(), random)
    assert not list(tmp_path.iterdir())


def test_running_statistics_are_not_those_of_the_check(tmp_path):
    settings = stacked(tmp_path / "run", "auto")
    size, before, after = decided(settings, from_task(small_task("residual")))
    assert size > 1 and after == before


def test_a_network_that_cannot_be_stacked_is_not_checked(tmp_path, groups):
    notes: list[str] = []
    size, *_ = decided(stacked(tmp_path), from_task(small_task("lstm")), notes.append)
    assert (size, groups) == (1, [])
    assert len(notes) == 1 and notes[0].startswith("engine.vectorize=3: ") and "LSTM" in notes[0]


def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> raysim.Listener:
    """Have the job of client 3 fail in the second round, some times."""
    left, made = [0], ClientJobs.job

    def job(self: ClientJobs, message: Any, client: int, *given: Any) -> Any:
        if client == 3 and left[0]:
            left[0] -= 1
            raise OSError("a disk that stutters")
        return made(self, message, client, *given)

    class Arm(Notes):
        def round_done(self, row: Any) -> None:
            left[0] = times if row["round"] == 1 else 0

    monkeypatch.setattr(ClientJobs, "job", job)
    return Arm()


def test_a_passing_fault_leaves_the_bits_of_a_stacked_run(tmp_path, monkeypatch, groups):
    task = make_task(SIZES, DropNet)
    raysim.run(stacked(tmp_path / "quiet"), task)
    groups.clear()
    raysim.run(stacked(tmp_path / "faulty"), task, failing(monkeypatch, 1))
    assert groups == [2, 3, 3, 3, 3]  # the check; the faulty group waits for its retry
    assert (tmp_path / "faulty/errors.log").read_text().count("OSError: a disk") == 1
    assert model_of(tmp_path / "faulty") == model_of(tmp_path / "quiet")


def test_a_client_that_fails_for_good_does_not_take_its_group_along(tmp_path, monkeypatch, groups):
    task, listener = make_task(SIZES, DropNet), failing(monkeypatch, 2)
    settings = stacked(tmp_path, on_client_error="drop")
    result = raysim.run(settings, task, listener)
    assert groups == [2, 3, 3, 3, 2]
    assert result.metrics["clients"].to_pylist() == [6, 5]
    [note] = listener.notes
    assert note.startswith("round 2: client 3 was dropped: ") and "stutters" in note


@pytest.mark.parametrize("fraction", [0.5, 0.7])
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_resumed_stacks_are_those_of_the_whole_run(tmp_path, method, fraction):
    """Tensors of a file are in another order than a network's; of 4 clients one is left over."""
    stacks = {"method.name": method, "engine.vectorize": 3, "fraction": fraction, "rounds": 4}
    task = make_task((1, 3, 160, 17, 40, 80))
    raysim.run(make_settings(tmp_path / "straight", **stacks), task)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "broken", **stacks), task, StopAfter(2))
    raysim.resume(tmp_path / "broken", task)
    assert model_of(tmp_path / "straight") == model_of(tmp_path / "broken")


class Looking(SmallNet):
    """Two linear layers with a part before, between or behind them."""

    def __init__(self, before: Any = None, between: Any = None, scaled: Any = None) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(12))
        self.scaled = scaled or (lambda x: x)
        self.features = nn.Sequential(nn.Flatten(), before or nn.Identity())
        self.hidden = nn.Sequential(nn.Linear(12, 16), between or nn.Identity(), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.scaled(x))


class Running(Looking):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return super().forward(x - self.mean)


class OwnNorm(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


def hooked() -> nn.Module:
    norm = nn.BatchNorm1d(16)
    norm.register_forward_hook(lambda module, given, output: 2 * output)
    return norm


def patched() -> nn.Module:
    norm = nn.BatchNorm1d(16)
    norm.forward = MethodType(lambda self, x: 2 * nn.BatchNorm1d.forward(self, x), norm)
    return norm


def instances(track: bool) -> nn.Module:
    norm = nn.InstanceNorm1d(4, track_running_stats=track)
    return nn.Sequential(nn.Unflatten(1, (4, 3)), norm, nn.Flatten())


def functional(x: Tensor) -> Tensor:
    return nn.functional.batch_norm(x, None, None, training=True)


LOOKING: dict[str, Callable[[], nn.Module]] = {
    "mean": lambda: Looking(scaled=lambda x: x - x.mean(0)),
    "largest value": lambda: Looking(scaled=lambda x: x / x.abs().max()),
    "order": lambda: Looking(scaled=lambda x: x.sort(0).values),
    "sum of neighbours": lambda: Looking(scaled=lambda x: x + x.roll(1, 0)),
    "running mean": Running,
    "function": lambda: Looking(scaled=functional),
    "subclass": lambda: Looking(between=OwnNorm(16)),
    "hook": lambda: Looking(between=hooked()),
    "forward of an object": lambda: Looking(between=patched()),
    "statistics of instances": lambda: Looking(before=instances(True)),
}
BLIND: dict[str, Callable[[], nn.Module]] = {
    "nothing": Looking,
    "batch norm": lambda: Looking(between=nn.BatchNorm1d(16)),
    "layer norm": lambda: Looking(between=nn.LayerNorm(16)),
    "group norm": lambda: Looking(between=nn.GroupNorm(4, 16)),
    "instances": lambda: Looking(before=instances(False)),
    "dropout": lambda: Looking(between=nn.Dropout(0.5)),
}
SEEN = "the model or a rule of the method looks at all samples of a batch, which a stack pads"


class MeanPenalty(FedAvg):
    """FedAvg with a penalty that takes a mean of its own."""

    def rules(self) -> raysim.Rules:
        return raysim.Rules(penalties=(lambda view, outputs, batch: outputs.logits.mean(),))


class MeanCriterion(FedAvg):
    """FedAvg with a criterion that takes a mean of its own."""

    def rules(self) -> raysim.Rules:
        def criterion(view: raysim.View, outputs: raysim.Outputs, batch: raysim.Batch) -> Tensor:
            return nn.functional.cross_entropy(outputs.logits, batch.y)

        return raysim.Rules(criterion=criterion)


@pytest.mark.parametrize("looks", [*LOOKING, *BLIND])
def test_a_model_that_looks_at_its_batch_is_trained_one_client_at_a_time(tmp_path, looks):
    notes: list[str] = []
    task = make_task(SIZES, (LOOKING | BLIND)[looks])
    size, before, after = decided(stacked(tmp_path), from_task(task), notes.append)
    assert before == after
    refused = [f"engine.vectorize=3: clients are trained one at a time: {SEEN}"]
    assert (size, notes) == ((1, refused) if looks in LOOKING else (3, []))


@pytest.mark.parametrize("method", ["MeanPenalty", "MeanCriterion"])
def test_a_rule_that_looks_at_its_batch_is_trained_as_alone(tmp_path, groups, method):
    task, listener, name = make_task(SIZES), Notes(), {"method.name": f"{__name__}:{method}"}
    raysim.run(stacked(tmp_path / "asked", **name), task, listener)
    raysim.run(stacked(tmp_path / "loop", 0, **name), task)
    assert [note for note in listener.notes if note.endswith(SEEN)] and groups == []
    assert model_of(tmp_path / "asked") == model_of(tmp_path / "loop")
