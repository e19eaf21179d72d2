"""Clients trained on a GPU's tensors, which have no values: steps neither leave it nor wait for it.

As in `tests/methods/test_on_gpu.py`. Gradients are zeros, as autograd needs a device.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import raysim
from raysim.testing.tasks import small_task
from raysim.training import client_training
from raysim.training.job import LocalLosses
from raysim.training.network import Network
from raysim.training.stacked import trainer as stacked_trainer
from raysim.training.stacked.trainer import StackedTrainer
from tests.methods.test_contract import settings_for
from tests.methods.test_on_gpu import GPU, FakeGpu

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
CASES = [("fedavg", "residual"), ("scaffold", "cnn"), ("mifl", "mlp"), ("fedmmd", "cnn")]


class Watched(FakeGpu):
    """Counts what passes between host and device: copies, and values that are read."""

    def __init__(self):
        super().__init__(allow_non_fake_inputs=True)  # constants
        self.passed = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = super().__torch_dispatch__(func, types, args, kwargs)
        devices = {t.device for t in tree_leaves((args, found)) if isinstance(t, Tensor)}
        copied = "copy" in func.__name__ and len(devices) > 1
        if copied or func is torch.ops.aten._local_scalar_dense.default:
            self.passed[func.__name__] += 1
        return found


class HostGenerator:
    """Makes a generator where one of the device is asked for; nothing is drawn from it."""

    def __new__(cls, device=None):
        return torch._C.Generator()


def trainer_on(gpu, trainer, batch_size):
    """Return a trainer like this one on the device."""
    module = copy.deepcopy(trainer.network.module)
    own = [
        (owner, name, p, p.detach())
        for owner in module.modules()
        for name, p in owner.named_parameters(recurse=False)
    ]
    found = copy.copy(trainer)
    with gpu:
        for owner, name, before, values in own:
            moved = nn.Parameter(gpu.moved(values), requires_grad=before.requires_grad)
            owner._parameters[name] = moved
        for owner in module.modules():
            owner._buffers.update(gpu.moved(dict(owner.named_buffers(recurse=False))))
        found.network, found._frozen, found._buffer = Network(module), None, None
    found._device, found._generators, found.recorded = GPU, [], None
    found.local = trainer.local.model_copy(update={"batch_size": batch_size})
    return found


def jobs_on(gpu, jobs):
    """Return jobs like these on the device; what is sent to all is there once."""
    with gpu:
        sent = gpu.moved(jobs[0].broadcast)
        return [
            replace(
                job,
                data=job.data._replace(x=gpu.moved(job.data.x), y=gpu.moved(job.data.y)),
                broadcast=sent,
                state=gpu.moved(job.state),
                batches=np.random.default_rng(0),
            )
            for job in jobs
        ]


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize(("method", "family"), CASES)
def test_steps_neither_leave_the_device_nor_wait(tmp_path, monkeypatch, method, family, stacked):
    """As much passes between host and device with 2 steps a client as with 6."""
    given, run = [], StackedTrainer.run
    with monkeypatch.context() as patch:
        patch.setattr(
            StackedTrainer,
            "run",
            lambda own, js: given.append((own.sequential, js)) or run(own, js),
        )
        own = {"fraction": 1.0, "engine.vectorize": 3, "local.epochs": 1, "rounds": 2}
        raysim.run(settings_for(method, tmp_path, **own), small_task(family, (12, 9, 8)))
    trainer, jobs = next(each for each in reversed(given) if each[1][0].epochs)
    monkeypatch.setattr(torch, "Generator", HostGenerator)
    monkeypatch.setattr(torch.autograd, "grad", lambda v, at, **k: [*map(torch.zeros_like, at)])
    monkeypatch.setattr(client_training, "gradients_of", lambda v, at: [*map(torch.zeros_like, at)])
    monkeypatch.setattr(LocalLosses, "of", lambda *figures: LocalLosses(1, 0.0, 0.0))
    monkeypatch.setattr(stacked_trainer, "recorder_on", lambda device, note: None)
    passed = []
    for size in (6, 2):
        gpu = Watched()
        alone, moved = trainer_on(gpu, trainer, size), jobs_on(gpu, jobs)
        with gpu:
            alone.frozen  # noqa: B018 - made before a step
            train = (
                StackedTrainer(alone, print).run if stacked else lambda js, a=alone: map(a.run, js)
            )
            gpu.passed.clear()
            uploads = [upload for upload, _ in train(moved)]
        found = tree_leaves([(upload.sums, upload.state, upload.round_state) for upload in uploads])
        assert {tensor.device for tensor in found} == {GPU}
        passed.append(gpu.passed)
    assert passed[0] == passed[1] and passed[0].total()
