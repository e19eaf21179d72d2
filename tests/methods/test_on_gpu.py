"""Functions of every method's clients on a GPU's tensors: no tensor is left on the CPU.

torch's fake tensors have shapes and a device, and no values; as on a GPU, an operation on tensors
of two devices fails. What clients do in a run on the CPU is done again on such tensors.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

import raysim
from raysim.api.method import METHODS
from raysim.api.rules import Trained, View
from raysim.training.objective import objective
from raysim.training.sequential import SequentialTrainer
from tests.methods.test_contract import SETTINGS
from tests.tasks import make_settings, make_task

GPU = torch.device("cuda", 0)


class FakeGpu(FakeTensorMode):
    """A mode in which values that Python reads are 1."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1
        if func is torch.ops.aten.bincount.default:
            return args[0].new_zeros(args[2])
        return super().__torch_dispatch__(func, types, args, kwargs)

    def moved(self, tree):
        return tree_map_only(torch.Tensor, lambda t: self.from_tensor(t).to(GPU), tree)


def on_gpu(trainer, job):
    """Take a step with a client's rules, and finish; return all that this gives."""
    rules, gpu = job.rules, FakeGpu()
    network, tensors = trainer.network.frozen(), trainer.network.tensors()
    names = trainer.network.trainable_names(job.trainable)
    with gpu, torch.no_grad():
        groups = [gpu.moved(group) for group in (job.broadcast, job.state, job.personal)]
        data = job.data._replace(x=gpu.moved(job.data.x), y=gpu.moved(job.data.y))
        if rules.from_samples:
            groups[1] = {**groups[1], **rules.from_samples(groups[0], data)}
        started = rules.start(*groups)
        params = {**gpu.moved(tensors), **started}
        view = View(
            params=params,
            trainable=names,
            start=started,
            broadcast=groups[0],
            state=groups[1],
            personal=groups[2],
            generator=lambda purpose: torch.Generator(),
            at=network.at,
            gradient=lambda tensors, batch, **_: {n: torch.ones_like(tensors[n]) for n in names},
        )
        value = objective(rules, view, network.at(params, data.x), data)
        directions, states = {name: torch.ones_like(params[name]) for name in names}, {}
        for each in rules.transforms:
            state = each.init(view)
            directions, states[each.name] = each.update(view, directions, data, state)
        beside = {}
        for each in rules.companions:
            beside[each.name] = each.start(view)
            state, lr = each.init(view), job.lr
            found = each.gradient(view, beside[each.name], data, state, lr)
            directions[each.name], states[each.name] = found
        upload = rules.finish(view, Trained(3, job.lr, states, data, companions=beside))
    groups = (upload.sums, upload.rows, upload.state, upload.round_state)
    return tree_leaves([value, directions, states, *groups])


@pytest.mark.parametrize("method", [*METHODS])
def test_what_a_client_computes_is_on_its_device(tmp_path, monkeypatch, method):
    jobs, run = [], SequentialTrainer.run
    monkeypatch.setattr(
        SequentialTrainer, "run", lambda own, job: jobs.append((own, job)) or run(own, job)
    )
    options = {"method.name": method, "fraction": 1.0, "rounds": 2, "local.epochs": 1}
    options |= {"checkpoint_every": 9}
    raysim.run(make_settings(tmp_path, **options, **SETTINGS.get(method, {})), make_task((12, 9)))
    for trainer, job in jobs:
        found = on_gpu(trainer, job)
        assert found and {each.device for each in found} == {GPU}
