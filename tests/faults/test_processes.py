"""Processes that fail by themselves, and clients that fail in every process."""

from __future__ import annotations

import os
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn

import raysim
from raysim.testing.tasks import SmallNet
from tests.tasks import EQUAL, Notes, long_settings, make_task, model_of

BAD = 3
MARK = 777.0
CALLS = count(1)
"""Numbers of this process's calls of a model."""


class Worn(nn.Flatten):
    """Fails in one process, the first that has made so many calls, from then on."""

    def __init__(self, log: Path, calls: int, error: Exception) -> None:
        super().__init__()
        self.log, self.calls, self.error = log, calls, error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if next(CALLS) > self.calls:
            if not self.log.exists():
                self.log.write_text(str(os.getpid()))
            if self.log.read_text() == str(os.getpid()):
                raise self.error
        return super().forward(x)


class Trap(nn.Flatten):
    """Fails at samples that bear the mark; keeps a log of its processes."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == MARK).any()):
            with self.log.open("a") as file:
                file.write(f"{os.getpid()}\n")
            raise ValueError("the mark")
        return super().forward(x)


class Net(SmallNet):
    def __init__(self, features: type[nn.Module], *arguments: object) -> None:
        super().__init__()
        self.features = features(*arguments)


def settings_of(folder: Path, actors: int) -> raysim.Settings:
    engine = {"engine.backend": "ray", "engine.actors": actors} if actors else {}
    others = {"rounds": 2, "fraction": 1.0, "on_client_error": "drop"}
    return long_settings(folder, **others, **engine)


@pytest.mark.full
@pytest.mark.parametrize(
    ("actors", "error"),
    [
        (2, RuntimeError("worn out")),
        (2, torch.AcceleratorError("CUDA error: an illegal memory access was encountered")),
        (1, RuntimeError("worn out")),
    ],
    ids=["process", "device", "only process"],
)
def test_a_process_that_fails_for_good_costs_no_client(tmp_path, shared_ray, actors, error):
    raysim.run(settings_of(tmp_path / "undisturbed", 0), make_task(EQUAL))
    log, listener = tmp_path / "log", Notes()
    task = make_task(EQUAL, partial(Net, Worn, log, 15, error))
    result = raysim.run(settings_of(tmp_path / "run", actors), task, listener)
    assert log.read_text() != str(os.getpid()), "no actor failed"
    assert result.metrics["clients"].to_pylist() == [len(EQUAL)] * 2 and not listener.of_clients
    assert model_of(tmp_path / "run") == model_of(tmp_path / "undisturbed")


@pytest.mark.full
@pytest.mark.parametrize("actors", [2, 1])
def test_a_bad_client_is_dropped_after_two_processes(tmp_path, shared_ray, actors):
    log, listener = tmp_path / "log", Notes()
    task = make_task(EQUAL, partial(Net, Trap, log))
    task.clients[BAD][0][:, 0] = MARK
    result = raysim.run(settings_of(tmp_path / "run", actors), task, listener)
    processes = log.read_text().split()
    assert len(processes) == 4 and processes[0] != processes[1] and processes[2] != processes[3]
    assert result.metrics["clients"].to_pylist() == [len(EQUAL) - 1] * 2
    assert [note.partition(" (")[0] for note in listener.of_clients] == [
        f"round {number}: client {BAD} was dropped: ValueError: the mark" for number in (1, 2)
    ]


def test_a_gpu_that_fails_inline_stops_the_run_in_one_line(tmp_path):
    error = torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with ...")
    task = make_task(EQUAL, partial(Net, Worn, tmp_path / "log", next(CALLS) + 15, error))
    line = r"^the GPU fails at train of \(\d,\): CUDA error: device-side assert triggered; fix this"
    with pytest.raises(raysim.RunError, match=line):
        raysim.run(settings_of(tmp_path / "run", 0), task)
