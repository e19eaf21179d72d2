"""Stacks: which clients share one, how many fit in memory, and the part that samples take."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import raysim
from raysim.federation.opened import _room
from raysim.federation.task import from_task
from raysim.numbers.tensors import nbytes
from raysim.testing.tasks import small_task
from raysim.training.stacked import stack_size as sizes
from raysim.training.stacked.cuda_graphs import GraphRecorder
from raysim.training.stacked.stack_size import (
    FINISH_COPIES,
    MEMORY_FRACTION,
    STATE_COPIES,
    STEP_COPIES,
    WORKSPACES,
    StackBytes,
    stack_bytes,
    stack_size,
    stacks_of,
)
from raysim.training.stacked.stacks import leaves
from raysim.training.stacked.step import KeptSteps
from tests.benchmarks.peers.networks import NETWORKS
from tests.methods.test_contract import settings_for
from tests.training.stacked.test_cuda_graphs import Tape


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 9), st.randoms())
def test_groups_hold_all_clients_by_size(sizes, size, random):
    clients = list(range(len(sizes)))
    random.shuffle(clients)
    groups = stacks_of(clients, np.array(sizes), size)
    flat = [client for group in groups for client in group]
    assert sorted(flat) == list(range(len(sizes)))
    assert [sizes[client] for client in flat] == sorted(sizes, reverse=True)
    assert all(len(group) == size for group in groups[:-1])
    assert groups == stacks_of(sorted(clients), np.array(sizes), size)


def test_a_stack_takes_what_its_clients_take_and_what_one_upload_takes():
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 100), nn.ReLU(), nn.Linear(100, 4))
    model, activations = 4 * (6 * 100 + 100 + 100 * 4 + 4), 4 * (6 + 100 + 100 + 4)
    x, samples = torch.zeros(1, 2, 3), 50 * 4 * 6
    found = stack_bytes(module, x, rows=10, samples=50)
    most = 2.75 * 10 * activations  # more than two copies of the model
    assert found == StackBytes(13 * model + 96 * 2**20, 3 * model + 1.5 * samples + most)
    found = stack_bytes(module, x, rows=1, samples=50, slots=2, state=1000)
    assert found.each == (3 + 2 + 2) * model + 1.5 * samples + 6 * 1000


def test_columns_of_convolutions_count():
    """Those of all layers are kept, and the largest has a gradient of twice their bytes."""
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 5, 3, padding=1)
    found = stack_bytes(nn.Sequential(*layers), torch.zeros(1, 1, 8, 8), rows=7, samples=0)
    first, second = (4 * 9 * channels * 64 for channels in (1, 4))  # float32
    outputs = 4 * (4 + 5) * 64
    model = sum(p.nbytes for layer in layers for p in layer.parameters())
    assert found.each == 3 * model + 7 * (2.75 * outputs + first + second + 2 * second)


def test_a_stack_fits_in_memory():
    needed = StackBytes(fixed=300, each=60)
    assert [needed.most(memory) for memory in (1, 1499, 1500, 10**12)] == [1, 9, 10, 256]


COUNTED = {
    "mnist-cnn-128": (25.9, 13.1, 11.9),
    "2nn": (5.9, 5.2, 5.0),
    "resnet18": (282.7, 233.6, 221.3),
}
"""MiB of a client in stacks of 8, 32 and 128, of 300 samples (B=10), as tests/benchmarks/gpu counts
them on an H200 (RESULTS-GPU.md). All were counted in one process, so that the workspaces of CUDA's
libraries are in the first figure alone. Convolutions took no columns then."""


@pytest.mark.parametrize("network", COUNTED)
def test_the_estimate_is_a_little_more_than_was_counted_on_a_gpu(monkeypatch, network):
    monkeypatch.setattr(sizes, "column_bytes", lambda layer, maps: 0)
    kind = NETWORKS[network]
    needed = stack_bytes(kind.build(), torch.zeros(1, *kind.shape), rows=10, samples=300)
    for stack, counted in zip((8, 32, 128), COUNTED[network], strict=True):
        there = 0 if counted == COUNTED["mnist-cnn-128"][0] else WORKSPACES
        estimated = (needed.fixed - there + stack * needed.each) / 2**20
        assert 1 < estimated / (stack * counted) < 1.1


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto", "mifl"])
def test_the_estimate_leaves_room_for_what_is_kept_of_other_groups(tmp_path, monkeypatch, method):
    """Stacks of eight and of six; but for FedAvg, kinds of the first round and of later ones."""
    trainers, init = [], KeptSteps.__init__

    def noted(self, recorder):
        init(self, GraphRecorder(Tape, print))
        trainers.append(self)

    monkeypatch.setattr(KeptSteps, "__init__", noted)
    own = {"fraction": 1.0, "rounds": 3, "engine.vectorize": 8, "local.epochs": 1}
    task = small_task("mlp", (8,) * 14)
    result = raysim.run(settings_for(method, tmp_path, **own, clients=14), task)
    kept = [step for each in trainers[1:] for step, _ in each._kinds.values()]  # not the check
    held = [sum(t.nbytes for t in unique(step)) for step in kept]
    others = (sum(held) - max(held)) / 8 / nbytes({"model": result.params})
    assert len(kept) > 1 and others > (0.5 if method == "fedavg" else 2)
    copies = STEP_COPIES + FINISH_COPIES
    states = 0 if method == "fedavg" else 1  # of the model's size
    assert copies + others <= (copies + STATE_COPIES * states) / MEMORY_FRACTION


def unique(step):
    """Return the tensors of a kept step, each once."""
    return {id(tensor): tensor for _, tensor in leaves(step._trees())}.values()


@pytest.mark.parametrize(("actors", "cohort", "size"), [(1, 7, 7), (2, 7, 4), (4, 7, 2), (2, 4, 2)])
def test_auto_leaves_no_actor_without_a_group(tmp_path, actors, cohort, size):
    federation = from_task(small_task("mlp", (8,) * 7))
    some = {"fraction": cohort / 7, "engine.vectorize": "auto"}
    settings = settings_for("fedavg", tmp_path, **some, clients=7)

    module = federation.network(0)

    def decided(**about):
        described = {"actors": [about] * actors}
        return stack_size(settings, federation, module, 0, lambda: described)

    assert decided(memory=10**12) == (size, None)
    assert decided() == (1, None)  # on cores


@pytest.mark.parametrize("started", [1, 2, 4])
def test_auto_counts_the_actors_that_are_asked_for_however_many_have_started(tmp_path, started):
    """Else a cluster that grows would leave most GPUs idle, and when it grew would matter."""
    federation = from_task(small_task("mlp", (8,) * 8))
    some = {"fraction": 1.0, "engine.vectorize": "auto", "engine.actors": 4}
    settings = settings_for("fedavg", tmp_path, **some, clients=8)
    described = {"actors": [{"memory": 10**12}] * started}
    module = federation.network(0)
    assert stack_size(settings, federation, module, 0, lambda: described) == (2, None)


def test_samples_stay_in_this_process_share_of_a_gpu(monkeypatch):
    """A set takes 0.15 of the cap of 250 bytes."""
    gpu = torch.device("cuda", 0)
    properties = SimpleNamespace(total_memory=1000)
    held = {"allocated_bytes.all.current": 0}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", {gpu: 0.25}.__getitem__)
    monkeypatch.setattr(torch.cuda.memory, "memory_stats", lambda device: {gpu: held}[device])
    for free, allocated, room in ((900, 0, 37.5), (20, 0, 20), (900, 240, 10)):
        held["allocated_bytes.all.current"] = allocated
        monkeypatch.setattr(torch.cuda, "mem_get_info", {gpu: (free, 1000)}.__getitem__)
        assert _room(gpu) == room
