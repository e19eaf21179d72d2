"""Notes of a run that learns nothing, and of a deadline that no client misses."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from torch import nn

import raysim
from tests.driver.test_lost_files import StopAfter
from tests.tasks import EQUAL, Notes, make_settings, make_task


def notes_of(path, task, **overrides):
    notes = Notes()
    raysim.run(make_settings(path, **overrides), task, notes)
    return notes.notes


def make_linear():
    """Return two logits of one input, that are equal for x = 0: class 0 is the answer."""
    return nn.Linear(1, 2, bias=False)


def task_of(labels, test_x=0.0):
    """Return a task of six clients with these labels of x = 1; a test set of 6 zeros and 4 ones."""
    clients = [(torch.ones(len(labels), 1), torch.tensor(labels))] * 6
    y = torch.tensor([0] * 6 + [1] * 4)
    return raysim.Task(
        model=make_linear, clients=clients, test=(test_x * (1 - 2.0 * y[:, None]), y)
    )


STATED = (
    "after 10 evaluations the best test accuracy is 60.00%; always answering the most frequent"
    " class has 60.00%; the train loss is {}, that of guessing 0.673"
)


@pytest.mark.parametrize(
    ("labels", "lr", "loss", "cause"),
    [
        ([0, 1] * 4, 1e-6, r"0\.\d+", "clients learn nothing yet; try more than local.lr=1e-06"),
        ([0] * 8, 1.0, r"0\.\d+", "clients learn their own samples"),
        ([0, 1] * 4, 100.0, r"\d+\.\d+", "it was [0-9.]+, steps may be too long; try less than"),
    ],
)
def test_a_run_that_guesses_is_noted_once_with_the_likely_cause(tmp_path, labels, lr, loss, cause):
    """The test inputs are 0, so that no training changes an answer."""
    overrides = {"rounds": 12, "local.lr": lr, "local.batch_size": 1}
    (note,) = notes_of(tmp_path / "run", task_of(labels), **overrides)
    assert re.fullmatch(f"{STATED.format(loss)}: {cause}.*", note)


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
