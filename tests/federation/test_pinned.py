"""Samples that do not stay on a GPU: the same bits, and no buffer is filled while it is copied."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import raysim
from raysim.federation import pinned
from raysim.federation.opened import OpenedSamples
from raysim.federation.pinned import PinnedRing
from raysim.federation.task import from_task
from raysim.samples.arrow import ConcatArray
from raysim.testing.tasks import small_task
from tests.cuda.device import GIB, CudaDevice
from tests.cuda.memory import GPU
from tests.cuda.transfers import Event
from tests.tasks import make_settings

SIZES = (30, 9, 17)
LITTLE = GIB + 2000
"""Bytes of a GPU with 2000 for tensors, of which a set of samples may take 300."""


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8, torch.int64, torch.complex64])
@pytest.mark.parametrize("rows", [None, [5, 0, 5, 3, 2], []])
def test_rows_are_the_same_however_many_a_buffer_holds(monkeypatch, kind, rows):
    values = torch.arange(7 * 6).reshape(7, 2, 3).to(kind)[:, :, :2]  # not contiguous
    numbers = None if rows is None else torch.tensor(rows, dtype=torch.int64)
    expected = values if rows is None else values[numbers]
    for room in (1, 3 * values[0].nbytes + 1, 10**4):  # none, three of them, all of them
        monkeypatch.setattr(pinned, "BUFFER_BYTES", room)
        with CudaDevice():
            found = PinnedRing(GPU).to_device(values, numbers)
            assert found.is_cuda and found.is_contiguous()
            assert torch.equal(found.cpu(), expected)


def test_a_buffer_is_filled_again_when_its_copy_is_done(monkeypatch):
    """While one is copied the other one is filled: of four copies only the first two are open."""
    values = torch.arange(8.0).reshape(4, 2)
    monkeypatch.setattr(pinned, "BUFFER_BYTES", 8)
    with CudaDevice() as gpu:
        PinnedRing(GPU).to_device(values)
        assert len(gpu.transfers.before(gpu.current)) == 2
    monkeypatch.setattr(Event, "synchronize", lambda event: None)
    said = "pinned memory changed before it was copied"
    with pytest.raises(RuntimeError, match=said), CudaDevice():
        PinnedRing(GPU).to_device(values)


@pytest.mark.parametrize("stack", [0, 3])
def test_a_run_gives_the_bits_of_one_whose_samples_stay_there(tmp_path, monkeypatch, stack):
    own = {"engine.gpus_per_actor": 1.0, "engine.vectorize": stack, "fraction": 1.0, "rounds": 2}
    own["evaluation.train_set"] = True
    monkeypatch.setattr(pinned, "BUFFER_BYTES", 100)
    models, copied = [], []
    for memory in (80 * GIB, LITTLE):
        with CudaDevice(memory) as gpu:
            settings = make_settings(tmp_path / str(memory), **own)
            models.append(raysim.run(settings, small_task("mlp", SIZES)).params)
        copied.append(
            sum(n for (_, where), n in gpu.where.items() if "raysim/federation/pinned.py" in where)
        )
    assert copied[1] > copied[0] == 0
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_inputs_in_several_files_come_by_the_ring_too():
    x, y = np.arange(800, dtype=np.float32).reshape(200, 4), np.arange(200) % 3
    data = from_task(raysim.Task(torch.nn.Flatten, [(x, y)], (x, y)))
    with CudaDevice(LITTLE) as gpu:
        opened = OpenedSamples(data, GPU)
        split = opened._splits["train"]
        object.__setattr__(split, "x", ConcatArray([x[:7], x[7:]]))
        for rows in (slice(3, 9), torch.tensor([9, 1, 8])):
            found, labels, _ = split.take(rows, opened._ring)
            assert found.is_cuda and labels.is_cuda
            assert torch.equal(found.cpu(), torch.from_numpy(x)[rows])
        assert any("raysim/federation/pinned.py" in where for _, where in gpu.where)
