"""Checks of a GPU before it is used: each fault is one line, and nothing has been trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import raysim
from raysim.errors import MachineError
from raysim.execution import gpu_checks
from raysim.execution.worker import Worker
from tests.cuda.device import GIB, CudaDevice
from tests.tasks import make_settings, make_task

GPU = {"engine.gpus_per_actor": 1.0, "rounds": 1}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(gpu_checks, "FREE_SECONDS", 0.02)
    monkeypatch.setattr(gpu_checks, "PAUSE_SECONDS", 0.005)


@pytest.fixture
def untrained(monkeypatch):
    """Have a worker on the GPU that trains fail; the rehearsal on the CPU does not."""
    train = Worker.train

    def refuse(self, *given):
        assert self.device.type == "cpu"
        train(self, *given)

    monkeypatch.setattr(Worker, "train", refuse)


def run(folder, **own: Any) -> raysim.Result:
    return raysim.run(make_settings(folder, **GPU | own), make_task((9, 9)))


def free(monkeypatch, amounts: Iterator[float]) -> None:
    """Have a GPU of 80 GiB say that so many of them are free, one after another."""
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda device=None: (int(next(amounts) * GIB), 80 * GIB)
    )


def test_memory_that_others_hold_is_said_before_stacks_are_sized_by_it(
    tmp_path, monkeypatch, untrained
):
    said = (
        r"^engine.gpus_per_actor=1: 32.2 GB of the GPU's memory are taken, and 53.7 GB are free of"
        r" the 84.8 GB for which engine.vectorize=auto chooses stacks: end other processes that"
        r" nvidia-smi shows, or set engine.gpus_per_actor=0.63, or set engine.vectorize to a number"
    )
    with CudaDevice(), pytest.raises(MachineError, match=said):
        free(monkeypatch, iter(lambda: 50, None))
        run(tmp_path, **{"engine.vectorize": "auto"})


@pytest.mark.parametrize(
    ("amounts", "own"),
    [
        ([50], {"engine.vectorize": 2}),  # whose stacks are the same whatever is free
        ([50, 50, 79], {"engine.vectorize": "auto"}),  # another process has just ended
        ([72], {"engine.vectorize": "auto"}),  # a desktop
        ([50], {"engine.vectorize": "auto", "engine.gpus_per_actor": 0.5}),  # the other half's
    ],
)
def test_a_run_goes_on_with_what_its_share_leaves(tmp_path, monkeypatch, amounts, own):
    with CudaDevice():
        free(monkeypatch, iter([*amounts, *[amounts[-1]] * 9]))
        assert len(run(tmp_path, **own).metrics) == 1


def test_memory_of_this_process_is_not_others(tmp_path, monkeypatch):
    with CudaDevice():
        free(monkeypatch, iter(lambda: 50, None))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: 25 * GIB)
        assert len(run(tmp_path, **{"engine.vectorize": "auto"}).metrics) == 1
