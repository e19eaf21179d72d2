"""Clients that hang, end their process or run out of memory: named, and dropped where asked."""

from __future__ import annotations

import os
import signal
from functools import partial
from time import sleep

import pytest
import torch
from torch import nn

import raysim
from raysim.testing.tasks import SmallNet
from tests.faults.processes import cluster
from tests.tasks import EQUAL, Notes, long_settings, make_task, model_of

BAD = 3
MARK = 777.0
SPRINGS = {
    "hangs": lambda: sleep(3600),
    "kills its process": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "allocates too much": lambda: torch.empty(2**50),
}


class Trap(nn.Flatten):
    """Springs at samples that bear the mark."""

    def __init__(self, spring: str) -> None:
        super().__init__()
        self.spring = spring

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == MARK).any()):
            SPRINGS[self.spring]()
        return super().forward(x)


class TrapNet(SmallNet):
    def __init__(self, spring: str) -> None:
        super().__init__()
        self.features = Trap(spring)


def trapped(spring: str) -> raysim.Task:
    task = make_task(EQUAL, partial(TrapNet, spring))
    task.clients[BAD][0][:, 0] = MARK
    return task


def settings_of(folder, **overrides) -> raysim.Settings:
    engine = {"engine.backend": "ray", "engine.actors": 1, "engine.client_timeout": 2.0}
    return long_settings(folder, **{"rounds": 1, "fraction": 1.0, **engine, **overrides})


@pytest.mark.full
def test_a_client_that_hangs_is_dropped(tmp_path, shared_ray):
    listener = Notes()
    settings = settings_of(tmp_path, on_client_error="drop")
    result = raysim.run(settings, trapped("hangs"), listener)
    assert listener.of_clients == [
        f"round 1: client {BAD} was dropped: its worker died 3 times: no answer within"
        " engine.client_timeout=2 s a client"
    ]
    assert result.metrics["clients"].to_pylist() == [len(EQUAL) - 1]


@pytest.mark.full
def test_a_client_that_no_worker_of_a_foreman_survives_is_dropped(tmp_path, monkeypatch):
    """One that hangs takes its foreman longer than a call of its few clients may."""
    causes = {
        "hangs": "its worker died 3 times: no answer within engine.client_timeout=2 s a client",
        "kills its process": "its worker died 3 times: ",
        "allocates too much": "RuntimeError: ",
    }
    drops, failing = {"on_client_error": "drop", "rounds": 2}, "allocates too much"
    alone = settings_of(tmp_path / "inline", **drops, **{"engine.backend": "inline"})
    raysim.run(alone, trapped(failing))
    with cluster(2, cores=2) as found:
        monkeypatch.setenv("RAY_ADDRESS", found.address)
        for spring, cause in causes.items():
            folder, listener = tmp_path / spring, Notes()
            settings = settings_of(folder, **drops, **{"engine.actors": 4})
            result = raysim.run(settings, trapped(spring), listener)
            said = [f"round {n}: client {BAD} was dropped: {cause}" for n in (1, 2)]
            notes = zip(listener.of_clients, said, strict=True)
            assert all(note.startswith(line) for note, line in notes)
            assert result.metrics["clients"].to_pylist() == [len(EQUAL) - 1] * 2
            assert model_of(folder) == model_of(tmp_path / "inline")


def refusal(settings: raysim.Settings, spring: str) -> str:
    with pytest.raises(raysim.RunError) as caught:
        raysim.run(settings, trapped(spring))
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_a_client_that_runs_out_of_memory_is_named(tmp_path):
    settings = settings_of(tmp_path, **{"engine.backend": "inline"})
    found = refusal(settings, "allocates too much")
    assert found.startswith(f"client {BAD}: failed twice in round 1: RuntimeError: ")
    assert "memory" in found


@pytest.mark.full
@pytest.mark.parametrize("spring", ["hangs", "kills its process"])
def test_a_client_that_no_worker_survives_is_named(tmp_path, shared_ray, spring):
    """The system's memory killer ends a process so."""
    found = refusal(settings_of(tmp_path), spring)
    assert found.startswith(f"client {BAD}: failed in round 1: its worker died 3 times: ")
    assert ("OOM killer" if spring == "kills its process" else "client_timeout=2 s") in found
