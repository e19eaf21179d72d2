"""Checks of a GPU before it is used: each fault is one line, and nothing has been trained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import raysim
from raysim.config import EngineSettings
from raysim.errors import MachineError, SettingsError
from raysim.execution import gpu_checks
from raysim.execution.gpu_checks import check_architecture, check_precision
from raysim.execution.worker import Worker
from tests.cuda.device import GIB, CudaDevice
from tests.tasks import make_settings, make_task

GPU_0 = torch.device("cuda", 0)
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


OLD = "GeForce (compute capability 7.5)"
BUILT = ("sm_80", "sm_86", "sm_90a", "compute_100")


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ("tf32", f"engine.precision=tf32: must be fp32, as {OLD} has no TF32; GPUs of compute"),
        ("bf16", f"engine.precision=bf16: must be fp32, as {OLD} has no bfloat16; GPUs of comp"),
    ],
)
def test_a_precision_that_a_gpu_lacks_is_said_before_the_run(
    tmp_path, monkeypatch, untrained, precision, said
):
    with CudaDevice(name="GeForce") as gpu:
        check_precision(EngineSettings(gpus_per_actor=1.0, precision=precision), GPU_0)
        gpu.capability = 7, 5
        with pytest.raises(SettingsError, match=f"^{re.escape(said)}"):
            run(tmp_path, **{"engine.precision": precision})


def test_tf32_is_refused_where_torch_cannot_use_the_gpu(monkeypatch):
    """As on a node whose GPU is declared to Ray alone; a rehearsal, which asks for none, runs."""
    engine = EngineSettings(gpus_per_actor=1.0, precision="tf32")
    cpu = torch.device("cpu")
    with pytest.raises(SettingsError, match=r"^engine.precision=tf32: must be fp32 or bf16, as"):
        check_precision(engine, cpu)
    check_precision(engine.model_copy(update={"gpus_per_actor": 0}), cpu)


@pytest.mark.parametrize(
    ("capability", "works"),
    [
        ((7, 5), False),  # too old
        ((8, 0), True),
        ((8, 9), True),  # by the code for 8.6
        ((9, 0), True),
        ((9, 1), False),  # sm_90a is for 9.0 alone
        ((10, 0), True),
        ((12, 0), True),  # translated by the driver
    ],
)
def test_a_gpu_that_torch_is_not_built_for_is_said(tmp_path, monkeypatch, capability, works):
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: [*BUILT])
    said = (
        rf"^GeForce \(compute capability 7.5\): torch {re.escape(torch.__version__)} has no kernels"
        r" for it, but for sm_80, sm_86, sm_90a, compute_100; install a build of torch that has, or"
        r" set engine.gpus_per_actor=0$"
    )
    with CudaDevice(name="GeForce") as gpu:
        gpu.capability = capability
        if works:
            check_architecture(GPU_0)
        elif capability == (7, 5):
            with pytest.raises(MachineError, match=said):
                run(tmp_path)
        else:
            with pytest.raises(MachineError, match="has no kernels for it"):
                check_architecture(GPU_0)


@pytest.mark.parametrize("built", [[], ["gfx90a"]])
def test_what_torch_does_not_say_is_not_checked(monkeypatch, built):
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    with CudaDevice():
        check_architecture(GPU_0)


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
