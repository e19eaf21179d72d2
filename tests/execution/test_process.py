"""Settings of a worker's process are set back when an inline run ends."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

import raysim
from raysim.config import EngineSettings
from raysim.execution.base import InlineExecutor
from raysim.execution.process import CUBLAS, configure
from raysim.execution.worker import Worker, WorkerSpec
from tests.tasks import make_settings, make_task

GPU = EngineSettings(gpus_per_actor=1)


@pytest.fixture
def gpu(monkeypatch):
    caps = [1.0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: caps[-1])
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", caps.append)
    return caps


def state():
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "filled": torch.utils.deterministic.fill_uninitialized_memory,
        "cublas": os.environ.get(CUBLAS),
        "tf32": [part.fp32_precision for part in tf32()],
    }


def tf32():
    return torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul


needs_new = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9"
)


@needs_new
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_gpu_is_set_up_as_asked_for_and_set_back(gpu, deterministic):
    before = state()
    assert before["tf32"][:2] == ["tf32", "tf32"]  # torch's default
    asked = GPU.model_copy(update={"deterministic": deterministic, "threads_per_actor": 2})
    with configure(asked):
        assert state() == {
            "threads": 2,
            "deterministic": deterministic,
            "warn only": False,
            "filled": not deterministic,
            "cublas": ":4096:8",
            "tf32": ["ieee"] * 3,
        }
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
        InlineExecutor(WorkerSpec(settings, None, tmp_path))
    assert state() == before


def test_a_worker_takes_its_share_of_a_gpu_s_memory_and_no_more(gpu):
    with configure(GPU.model_copy(update={"gpus_per_actor": 0.25})):
        assert gpu == [1.0, 0.25]
    assert gpu == [1.0, 0.25, 1.0]


def test_stacks_are_sized_by_that_share(tmp_path, monkeypatch):
    properties = SimpleNamespace(total_memory=1000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    settings = make_settings(tmp_path, **{"engine.gpus_per_actor": 0.25})
    worker = object.__new__(Worker)
    worker._settings, worker.device, worker._environment = settings, torch.device("cuda"), {}
    assert worker.about()["memory"] == 250
