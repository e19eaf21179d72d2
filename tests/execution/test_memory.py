"""Memory of a GPU that is short: one line, and no round is lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import raysim
from raysim.errors import MachineError
from raysim.execution.partial_sum import PartialSum
from raysim.numbers.tensors import exact
from raysim.training.stacked import cuda_graphs
from raysim.training.stacked.cuda_graphs import CudaRecording
from raysim.training.stacked.trainer import StackedTrainer
from tests.cuda.device import CudaDevice
from tests.tasks import Notes, make_settings, make_task, model_of

SIZES = (9, 9, 9, 9, 9)
LINE = (
    r"^engine.vectorize=5: a stack of 5 clients does not fit into the {} GB of the GPU that this"
    r" process may use: {} for this run, or start a new one with engine.vectorize=2; fix this, then"
    r" .*raysim.resume"
)


def settings_of(folder, **own: Any) -> raysim.Settings:
    few = {"engine.gpus_per_actor": 1.0, "engine.vectorize": 5, "fraction": 1.0, "rounds": 3}
    return make_settings(folder, **few | {"checkpoint_every": 9} | own)


@pytest.fixture
def short(monkeypatch):
    """Have stacks on the GPU not fit at these of their attempts, counted from 1; return them."""
    attempts, count, real = set(), [0], StackedTrainer.run

    def run(self, jobs):
        if jobs[0].data.y.is_cuda:
            count[0] += 1
            if count[0] in attempts:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(self, jobs)

    monkeypatch.setattr(StackedTrainer, "run", run)
    return attempts


@pytest.mark.parametrize("on_error", ["stop", "drop"])
@pytest.mark.parametrize(
    ("share", "room", "more"),
    [
        (1.0, "84.8", "end other processes on the GPU"),
        (0.5, "41.9", "raise engine.gpus_per_actor=0.5"),
    ],
)
def test_a_stack_that_does_not_fit_is_said_and_the_run_goes_on_from_there(
    tmp_path, short, on_error, share, room, more
):
    task, own = make_task(SIZES), {"on_client_error": on_error, "engine.gpus_per_actor": share}
    with CudaDevice():
        raysim.run(settings_of(tmp_path / "whole"), task)
    short |= {3 + 2, 3 + 3}  # the second round's, twice
    with CudaDevice(), pytest.raises(MachineError, match=LINE.format(room, more)):
        raysim.run(settings_of(tmp_path / "cut", **own), task)
    with CudaDevice():
        resumed = raysim.resume(tmp_path / "cut", task, overrides={"engine.gpus_per_actor": 1})
    assert resumed.metrics["round"].to_pylist() == [1, 2, 3]
    assert model_of(tmp_path / "cut") == model_of(tmp_path / "whole")


def test_a_stack_that_does_not_fit_once_is_trained_again(tmp_path, short):
    task = make_task(SIZES)
    with CudaDevice():
        raysim.run(settings_of(tmp_path / "whole"), task)
        short.add(3 + 2)
        raysim.run(settings_of(tmp_path / "again"), task)
    assert model_of(tmp_path / "again") == model_of(tmp_path / "whole")


@pytest.mark.parametrize(("owner", "name"), [(PartialSum, "check_stack"), (exact, "_sum_of_rows")])
def test_a_stack_whose_sum_does_not_fit_is_added_client_by_client(
    tmp_path, monkeypatch, owner, name
):
    task = make_task(SIZES)
    with CudaDevice():
        raysim.run(settings_of(tmp_path / "roomy"), task)
        monkeypatch.setattr(owner, name, refuse)
        raysim.run(settings_of(tmp_path / "short"), task)
    assert model_of(tmp_path / "short") == model_of(tmp_path / "roomy")


def refuse(*given, **named):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("stack", [0, 5])
def test_a_step_whose_recording_does_not_fit_is_taken_unrecorded(tmp_path, monkeypatch, stack):
    monkeypatch.setattr(cuda_graphs, "MIN_REPLAYS", 1)
    own, task = {"engine.vectorize": stack, "local.epochs": 3}, make_task(SIZES)
    with CudaDevice() as gpu:
        raysim.run(settings_of(tmp_path / "roomy", **own), task, notes := Notes())
    assert gpu.counts["captures"] and not notes.notes

    monkeypatch.setattr(CudaRecording, "__init__", refuse)
    with CudaDevice():
        raysim.run(settings_of(tmp_path / "short", **own), task, notes := Notes())
    said = "steps are not recorded as CUDA graphs: there is no memory for their tensors"
    assert notes.notes == [said]
    assert model_of(tmp_path / "short") == model_of(tmp_path / "roomy")
