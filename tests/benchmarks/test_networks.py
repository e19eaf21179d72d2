"""The comparison's networks, which the peers' environments build without raysim, are raysim's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import raysim.workloads  # noqa: F401 - registers the models
from raysim.samples.data import MODELS
from tests.benchmarks.peers.networks import NETWORKS

pytestmark = pytest.mark.ci

OURS = [name for name in NETWORKS if name != "pfl-cifar-cnn"]  # of which ours pools before ReLU


def kinds(module: nn.Module) -> list[str]:
    """Return what its layers say of themselves, in order."""
    return [repr(layer) for layer in module.modules() if not list(layer.children())]


@pytest.mark.parametrize("name", OURS)
def test_same_network(name: str) -> None:
    torch.manual_seed(0)
    theirs, network = NETWORKS[name].build(), NETWORKS[name]
    ours = MODELS.get(name)().build(network.shape, network.classes)
    assert kinds(ours) == kinds(theirs)
    tensors = dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True))
    ours.load_state_dict(tensors)
    x = torch.from_numpy(network.samples(3, np.random.default_rng(0))[0])
    ours.eval(), theirs.eval()
    assert torch.equal(ours(x), theirs(x))


def test_pfl_s_network_has_the_outputs_and_gradients_of_its_benchmark() -> None:
    by_hand = (3 * 9 + 1) * 32 + (32 * 9 + 1) * 64 + (64 * 14 * 14 + 1) * 128 + 129 * 10
    network = NETWORKS["pfl-cifar-cnn"]
    theirs = network.build()
    assert sum(p.numel() for p in theirs.parameters()) == by_hand
    ours = MODELS.get("pfl-cifar-cnn")().build(network.shape, network.classes)
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    x, y = (torch.from_numpy(part) for part in network.samples(4, np.random.default_rng(0)))
    found = []
    for each in (ours, theirs):
        torch.manual_seed(0)  # of dropout
        loss = nn.functional.cross_entropy(each(x), y)
        found.append([loss, *torch.autograd.grad(loss, [*each.parameters()])])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)
