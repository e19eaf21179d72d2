"""Notes of a run that learns nothing, of a deadline that no client misses, and of unused actors."""

from __future__ import annotations

import dataclasses
import re
from typing import ClassVar

import pytest
import torch
from torch import nn

import raysim
from raysim.methods.fedavg import FedAvg
from tests.tasks import EQUAL, Notes, StopAfter, make_settings, make_task


def notes_of(path, task, **overrides):
    notes = Notes()
    raysim.run(make_settings(path, **{"checkpoint_every": 20, **overrides}), task, notes)
    return notes.notes


def make_linear():
    """Return two logits of one input, that are equal for x = 0: class 0 is the answer."""
    return nn.Linear(1, 2, bias=False)


def task_of(labels, test_x=0.0):
    """Return a task of six clients with these labels of x = 1; a test set of 6 zeros and 4 ones.

    Where all labels are 0, those of two clients are 1.
    """
    others = labels if any(labels) else [1] * len(labels)
    of_clients = [labels] * 4 + [others] * 2
    clients = [(torch.ones(len(labels), 1), torch.tensor(of)) for of in of_clients]
    y = torch.tensor([0] * 6 + [1] * 4)
    return raysim.Task(
        model=make_linear, clients=clients, test=(test_x * (1 - 2.0 * y[:, None]), y)
    )


def imbalanced(scale=1.0):
    """Return a task of three clients: 9 of 10 samples are of class 0, and x tells them apart."""
    y = torch.tensor(([0] * 9 + [1]) * 4)
    x = scale * torch.stack([torch.ones(40), y.float()], dim=1)
    clients = [(x, y)] * 3
    return raysim.Task(lambda: nn.Linear(2, 2, bias=False), clients=clients, test=(x, y))


STATED = (
    "after 10 evaluations the best test accuracy is 60.00%; always answering the most frequent"
    " class has 60.00% (test_macro_f1: 37.50% and 37.50%; it tells more where one class has most"
    " samples); the train loss was 0.693 before training and is "
)
NOTHING = "clients learn nothing yet; try more than"
SIX = {"clients": 6, "fraction": 0.5}


@pytest.mark.parametrize(
    ("labels", "more", "said"),
    [
        (
            [0, 1] * 4,
            {"local.lr": 1e-6},
            rf"0\.69\d: {NOTHING} local.lr=1e-06, or more local.epochs",
        ),
        (
            [0, 1] * 4,
            {"local.lr": 1e-6, "local.steps": 2, "local.epochs": 1},
            rf"0\.69\d: {NOTHING} local.lr=1e-06, or more local.steps",
        ),
        *(
            ([0, 1] * 4, more, rf"0\.\d+: clients learn nothing yet; try {way}")
            for more, way in (
                ({"local.temperature": 1e7}, r"less than local\.temperature=1e\+07"),
                (
                    {"local.weight_decay": 10.0, "local.lr": 0.05},
                    r"less than local\.weight_decay=10",
                ),
                ({"local.clip_norm": 1e-7}, "more than local.clip_norm=1e-07"),
                (
                    {"local.optimizer": "adam", "local.eps": 1e6, "local.label_smoothing": 1.0},
                    r"less than local\.label_smoothing=1 or less than local\.eps=1e\+06",
                ),
            )
        ),
        (  # neither is far from what others train with
            [0, 1] * 4,
            {"local.lr": 1e-6, "local.weight_decay": 1e-4, "local.clip_norm": 5.0},
            rf"0\.69\d: {NOTHING} local.lr=1e-06, or more local.epochs",
        ),
        (
            [0] * 8,
            {"local.lr": 1.0, "local.epochs": 2, **SIX},
            r"0\.\d+: clients learn their own samples, and the mean of their models does not; try a"
            r" larger fraction, fewer local.epochs or less than local.lr=1",
        ),
        (
            [0] * 8,
            {"local.lr": 1.0, "local.epochs": 1, "fraction": 1.0},
            r"0\.\d+: clients learn their own samples, and the mean of their models does not; try"
            r" less than local.lr=1",
        ),
        (
            [0, 1] * 4,
            {"local.lr": 100.0},
            r"\d+\.?\d*, at most \d+\.?\d*: steps may be too long; try less than local.lr=100",
        ),
        (
            [0] * 6 + [1] * 2,
            {"local.lr": 1e-3, "method.name": "fedadam", "method.lr_server": 30.0},
            r"\d+\.?\d*, at most \d+\.?\d*: steps may be too long; try less than"
            r" method.lr_server=30",
        ),
    ],
)
def test_a_run_that_guesses_is_noted_once_with_the_likely_cause(tmp_path, labels, more, said):
    """The test inputs are 0, so that no training changes an answer."""
    overrides = {"rounds": 12, "local.batch_size": 1, **more}
    (note,) = notes_of(tmp_path / "run", task_of(labels), **overrides)
    assert re.fullmatch(re.escape(STATED) + said, note)


@pytest.mark.parametrize(
    ("scale", "lr", "ends"),
    [
        (1.0, 0.01, "learns slowly; try more rounds, or more than local.lr=0.01"),
        (1.0, 1e-5, "learn nothing yet; try more than local.lr=1e-05, or more local.epochs"),
        (1e3, 3e-6, "learns slowly; try more rounds"),  # of longer steps it may diverge
        (1e3, 1e-13, "learn nothing yet; try more than local.lr=1e-13, or more local.epochs"),
    ],
)
def test_where_one_class_has_most_samples_more_is_advised(tmp_path, scale, lr, ends):
    """The network begins far above the entropy of the classes, and above ln 2 with large inputs."""
    (note,) = notes_of(tmp_path / "run", imbalanced(scale), rounds=12, **{"local.lr": lr})
    assert note.endswith(ends) and "(test_macro_f1: " in note


class Stepping(FedAvg):
    """A user's method whose server has a rate; other fields look like one."""

    server_rate: ClassVar[str] = "eta"
    eta: float = 0.5
    lr_global: float = 1e-6
    lr_server: str = "as eta"

    def server_update(self, now, state, reduced):
        model, mean = state.groups["model"], reduced.means["model"]
        moved = {n: w + now.server_lr * (mean[n] - w) for n, w in model.items()}
        return state.replace(model=moved)


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"method.name": "fedadam", "method.lr_server": 1e-6}, "method.lr_server"),
        ({"method.name": "scaffold", "method.lr_global": 1e-6}, "method.lr_global"),
        (
            {"method.name": "chain", "method.methods": {"scaffold": {"lr_global": 1e-6}}},
            "method.methods.scaffold.lr_global",
        ),
        ({"server.name": "momentum", "server.lr": 1e-6}, "server.lr"),
        ({"method.name": f"{__name__}:Stepping", "method.eta": 1e-6}, "method.eta"),
    ],
)
@pytest.mark.parametrize("epochs", [1, 5])
def test_a_server_that_moves_nothing_is_told_of(tmp_path, more, key, epochs):
    more = {"rounds": 12, "local.lr": 0.1, "local.epochs": epochs, **more}
    (note,) = notes_of(tmp_path / "run", task_of([0] * 8), **more)
    assert note.endswith(f": the server hardly moves the model; try more than {key}=1e-06")


def make_mlp():
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5))


def make_wide():
    return nn.Linear(12, 5)


@pytest.mark.parametrize(
    ("build", "lr", "epochs"),
    [(make_mlp, 0.1, 1), (make_mlp, 0.1, 5), (make_mlp, 0.01, 1), (make_wide, 0.1, 1)],
)
def test_where_labels_have_nothing_to_do_with_inputs_nothing_is_advised(
    tmp_path, build, lr, epochs
):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(2320, 12, generator=draw), torch.randint(5, (2320,), generator=draw)
    clients = [(x[k : k + 40], y[k : k + 40]) for k in range(0, 320, 40)]
    task = raysim.Task(build, clients=clients, test=(x[320:], y[320:]))
    more = {"rounds": 12, "local.lr": lr, "local.batch_size": 10, "fraction": 0.5}
    (note,) = notes_of(tmp_path / "run", task, **more, **{"local.epochs": epochs})
    assert re.fullmatch(r"after 10 evaluations [^:]*", note)


@pytest.mark.parametrize(
    "more",
    [
        {"attack.name": "sign_flip", "attack.fraction": 0.34},
        {"channel.clip.norm": 1e-6},
        {"aggregation.name": "median"},
    ],
)
def test_no_cause_is_told_where_more_than_the_mean_moves_the_model(tmp_path, more):
    (note,) = notes_of(tmp_path / "run", task_of([0, 1] * 4), rounds=12, **more)
    assert note.endswith("where one class has most samples)")


def test_what_clients_do_not_deploy_is_not_noted(tmp_path):
    more = {"rounds": 12, "method.name": "local", "local.lr": 1.0}
    notes = notes_of(tmp_path / "run", task_of([0, 1] * 4), **more)
    assert not [note for note in notes if note.startswith("after 10 evaluations")]


def test_a_model_with_few_errors_where_one_class_has_most_samples_is_not_noted(tmp_path):
    """Its accuracy, 95% say, is less than 1.1 times that of guessing, 90%."""
    run = tmp_path / "run"
    assert notes_of(run, imbalanced(), rounds=12, **{"local.lr": 1.0}) == []


@pytest.mark.parametrize(
    ("test_x", "overrides"),
    [
        (1.0, {"rounds": 12, "local.lr": 1.0}),  # which learns
        (0.0, {"rounds": 9}),
        (0.0, {"rounds": 17, "evaluation.every": 2}),
    ],
)
def test_other_runs_are_not(tmp_path, test_x, overrides):
    task = task_of([0, 1] * 4, test_x)
    if test_x:
        x = torch.tensor([[1.0], [-1.0]] * 4)
        task = dataclasses.replace(task, clients=[(x, y) for _, y in task.clients])
    assert notes_of(tmp_path / "run", task, **overrides) == []


def test_a_run_that_is_resumed_is_noted_at_the_same_round(tmp_path):
    task, overrides = task_of([0] * 8), {"rounds": 12, "evaluation.every": 1}
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "run", **overrides), task, StopAfter(9))
    notes = Notes()
    raysim.resume(tmp_path / "run", task, notes)
    assert [note[:20] for note in notes.notes] == ["after 10 evaluations"]


@pytest.mark.parametrize(
    ("clock", "noted"),
    [
        ({"policy": "deadline", "deadline": 5000.0}, True),
        ({"policy": "deadline", "deadline": 5000.0, "dropout": 0.5}, False),
        ({"policy": "partial", "deadline": 5000.0}, False),
        ({}, False),
    ],
)
def test_a_deadline_that_no_client_misses_is_noted(tmp_path, clock, noted):
    settings = {"clock.name": "devices"} | {f"clock.{key}": value for key, value in clock.items()}
    found = notes_of(tmp_path / "run", make_task(EQUAL), rounds=2, **settings)
    said = [note for note in found if note.startswith("clock.deadline=5000: no client missed it")]
    assert len(said) == noted
    if noted:
        assert re.search(r"longest round took \d+\.\d virtual seconds$", said[0])


def test_actors_of_an_inline_run_are_noted(tmp_path):
    notes = Notes()
    raysim.run(make_settings(tmp_path, **{"engine.actors": 2}), make_task(EQUAL), notes)
    assert notes.notes == [
        "engine.actors=2: not used with engine.backend=inline, which trains in this process;"
        " actors need engine.backend=ray"
    ]
