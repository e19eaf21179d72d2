"""Settings of a worker's process are set back when an inline run ends."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

import raysim
from raysim.config import EngineSettings
from raysim.errors import MachineError, SettingsError
from raysim.execution import process
from raysim.execution.base import InlineExecutor
from raysim.execution.process import (
    CONTEXT_BYTES,
    CUBLAS,
    MPS_MEMORY,
    configure,
    device_of,
    is_device_error,
)
from raysim.execution.worker import Worker, WorkerSpec
from raysim.federation.opened import memory_cap
from raysim.tuning.slots.slot import SlotActor
from tests.tasks import make_settings, make_task

GPU = EngineSettings(gpus_per_actor=1)
TOTAL = 16 * 2**30
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@pytest.fixture
def gpu(monkeypatch):
    """Have torch find a GPU of 16 GiB; return the fractions to which its memory was limited.

    What lies under torch's own functions is replaced, so that these refuse what they do not take.
    """
    caps = [1.0]
    properties = SimpleNamespace(total_memory=TOTAL, name="H200", major=9, minor=0)
    private = {
        "_cuda_getDevice": lambda: 0,
        "_cuda_getMemoryFraction": lambda index: (caps[-1], None)[index],
        "_cuda_setMemoryFraction": lambda fraction, index: caps.append(fraction),
    }
    for name, value in private.items():
        monkeypatch.setattr(torch._C, name, value)
    monkeypatch.setattr(process, "_first_product", lambda: None)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "_get_device_properties", lambda index: properties, raising=False
    )
    return caps


@pytest.fixture
def mps(tmp_path, monkeypatch):
    """Have an MPS daemon's pipes, and an nvidia-smi that knows GPU 3; return the pipes' folder."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\n[ "$1" = --id=3 ] && echo 16384 || exit 6\n')
    smi.chmod(0o755)
    (tmp_path / "control").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.delenv(MPS_MEMORY, raising=False)
    return tmp_path


@pytest.fixture
def seen(monkeypatch):
    """Return the limits that MPS would read: what is set as CUDA first starts."""
    found = []

    def is_available():
        found.append({n: v for n, v in os.environ.items() if n in (MPS_MEMORY, THREADS)})
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    return found


def state():
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "filled": torch.utils.deterministic.fill_uninitialized_memory,
        "cublas": os.environ.get(CUBLAS),
        "tf32": [part.fp32_precision for part in tf32()],
        "old tf32": [old(part) for part in (torch.backends.cudnn, torch.backends.cuda.matmul)],
    }


def old(part):
    """Return what torch's old reader says; it fails where the user has set the new one alone."""
    try:
        return part.allow_tf32
    except RuntimeError:
        return "set apart"


def tf32():
    return torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul


needs_new = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9"
)


@needs_new
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(("precision", "flag"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_a_gpu_is_set_up_as_asked_for_and_set_back(gpu, deterministic, precision, flag):
    before = state()
    assert before["tf32"][:2] == ["tf32", "tf32"]  # torch's default
    asked = {"deterministic": deterministic, "precision": precision, "threads_per_actor": 2}
    asked = GPU.model_copy(update=asked)
    with configure(asked):
        assert state() == {
            "threads": 2,
            "deterministic": deterministic,
            "warn only": False,
            "filled": not deterministic,
            "cublas": ":4096:8",
            "tf32": [flag] * 3,
            "old tf32": [flag == "tf32"] * 2,
        }
        with torch.backends.cudnn.flags(enabled=False):  # as a user's module may
            assert not torch.backends.cudnn.enabled
    assert state() == before


@needs_new
def test_what_the_user_had_set_is_there_again(gpu, monkeypatch):
    monkeypatch.setenv(CUBLAS, ":16:8")
    torch.set_deterministic_debug_mode("warn")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        before = state()
        with configure(GPU.model_copy(update={"deterministic": False})):
            assert not torch.are_deterministic_algorithms_enabled()
            assert state()["tf32"] == ["ieee"] * 3
        assert state() == before
    finally:
        torch.set_deterministic_debug_mode("default")
        torch.backends.cuda.matmul.fp32_precision = "none"


@needs_new
def test_ways_that_the_user_set_apart_stay_apart(gpu):
    conv = torch.backends.cudnn.conv
    conv.fp32_precision = "ieee"
    try:
        with configure(GPU):
            assert [part.fp32_precision for part in tf32()] == ["ieee"] * 3
        assert [part.fp32_precision for part in tf32()] == ["ieee", "tf32", "none"]
    finally:
        conv.fp32_precision = "tf32"


def test_cublas_that_was_used_before_is_said_in_one_line(gpu, monkeypatch):
    def used():
        raise RuntimeError(f"Deterministic behavior was enabled\n{CUBLAS}=:4096:8 or :16:8")

    monkeypatch.setattr(process, "_first_product", used)
    before = state()
    with pytest.raises(SettingsError, match=r"^engine.deterministic=true: cuBLAS was used[^\n]+$"):
        configure(GPU)
    assert state() == before
    with configure(GPU.model_copy(update={"deterministic": False})):
        assert not torch.are_deterministic_algorithms_enabled()


@needs_new
def test_bf16_leaves_tf32_as_it_is(gpu):
    before = state()["tf32"]
    with configure(GPU.model_copy(update={"precision": "bf16"})):
        assert state()["tf32"] == before


def test_an_older_torch_is_told_in_its_own_way(gpu, monkeypatch):
    class Flags:
        allow_tf32 = True

    matmul, cudnn = Flags(), Flags()
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)
    for precision, on in (("fp32", False), ("tf32", True)):
        matmul.allow_tf32 = cudnn.allow_tf32 = not on
        with configure(GPU.model_copy(update={"precision": precision})):
            assert (matmul.allow_tf32, cudnn.allow_tf32) == (on, on)
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    with configure(GPU):
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)
    assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)


@needs_new
def test_a_run_leaves_the_process_as_it_was(tmp_path):
    before = state()
    raysim.run(
        make_settings(tmp_path, rounds=1, **{"engine.threads_per_actor": 2}), make_task((9,))
    )
    assert state() == before


@needs_new
def test_a_worker_that_cannot_be_built_leaves_it_too(tmp_path, gpu):
    settings = make_settings(tmp_path, **{"engine.gpus_per_actor": 1})
    before = state()
    with pytest.raises(AttributeError):
        InlineExecutor(WorkerSpec(settings, None, tmp_path, tmp_path))
    assert state() == before


def test_a_worker_takes_its_share_of_a_gpu_s_memory_and_no_more(gpu):
    share = GPU.model_copy(update={"gpus_per_actor": 0.25})
    with configure(share):
        # Four allocators and four contexts are the whole device.
        assert 4 * (memory_cap(device_of(share)) + CONTEXT_BYTES) == TOTAL
    assert gpu[-1] == 1.0


def test_stacks_are_sized_by_that_cap(tmp_path, gpu):
    worker = object.__new__(Worker)
    worker._environment = {}
    with configure(GPU.model_copy(update={"gpus_per_actor": 0.5})):
        worker.device = device_of(GPU)
        assert worker.about()["memory"] == TOTAL // 2 - CONTEXT_BYTES


@needs_new
def test_a_share_that_holds_no_context_is_refused_and_leaves_nothing(gpu, mps):
    before = state()
    with pytest.raises(SettingsError, match=r"^engine.gpus_per_actor=0.04: must be over 0.062 on"):
        configure(GPU.model_copy(update={"gpus_per_actor": 0.04, "threads_per_actor": 2}))
    assert state() == before and gpu[-1] == 1.0
    assert MPS_MEMORY not in os.environ


def test_mps_limits_are_set_before_cuda_starts(mps, seen):
    with configure(GPU.model_copy(update={"gpus_per_actor": 0.25})):
        assert seen == [{MPS_MEMORY: "0=4096M"}]
    assert MPS_MEMORY not in os.environ


def test_a_slot_s_process_is_limited_before_cuda_starts(mps, seen, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(
        "raysim.tuning.slots.slot._reports",
        lambda settings, *_: (each for each in [started.append(settings)]),
    )
    values = make_settings(tmp_path, **{"engine.gpus_per_actor": 0.5}).to_dict()
    monkeypatch.setenv(MPS_MEMORY, "")  # so that what the slot sets is removed again
    monkeypatch.delenv(MPS_MEMORY)
    SlotActor({}).advance((values, False, False))
    assert seen == [{MPS_MEMORY: "0=8192M"}]
    assert started[0]["engine"]["gpus_per_actor"] == 0.0  # no device is seen


def test_mps_limits_of_the_user_stay(mps, seen, monkeypatch):
    monkeypatch.setenv(THREADS, "70")
    monkeypatch.setenv(MPS_MEMORY, "0=100M")
    with configure(GPU.model_copy(update={"gpus_per_actor": 0.25})):
        assert seen == [{THREADS: "70", MPS_MEMORY: "0=100M"}]
    assert os.environ[THREADS] == "70" and os.environ[MPS_MEMORY] == "0=100M"


def test_without_an_answer_of_nvidia_smi_nothing_is_limited(mps, seen, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    with configure(GPU.model_copy(update={"gpus_per_actor": 0.25})):
        assert seen == [{}]


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_without_mps_or_a_gpu_nothing_is_limited(mps, seen, share):
    if share:
        (mps / "control").unlink()
    with configure(GPU.model_copy(update={"gpus_per_actor": share})):
        assert MPS_MEMORY not in os.environ


def test_a_gpu_that_does_not_start_is_a_failure_of_the_machine(tmp_path, monkeypatch):
    """The CPU would take many times as long, and give other bits, without a word."""
    monkeypatch.setattr(process, "GPU_DRIVERS", (str(tmp_path / "none"),))
    assert device_of(GPU) == torch.device("cpu")  # a GPU that is declared to Ray alone
    monkeypatch.setattr(process, "GPU_DRIVERS", (str(tmp_path),))
    monkeypatch.setattr(torch.cuda, "init", failing("Unexpected error\n 802: not ready"))
    said = r"does not start: Unexpected error 802: not ready; see what nvidia-smi says$"
    with pytest.raises(MachineError, match=said):
        device_of(GPU)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(MachineError, match=r"is built without CUDA; install a build with it$"):
        device_of(GPU)
    assert device_of(EngineSettings()) == torch.device("cpu")


def failing(line):
    def fail():
        raise RuntimeError(line)

    return fail


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", True),
        ("HIP error: invalid device function", True),
        ("CUDA out of memory. Tried to allocate 2 GiB", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_whose_errors_are_the_devices(line, expected):
    assert is_device_error(RuntimeError(line)) is expected
