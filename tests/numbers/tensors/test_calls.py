"""Calls of networks at given tensors, with tensors that have several names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from raysim.numbers.tensors import state_of
from raysim.numbers.tensors.calls import call_at, structure_of


def tied() -> nn.Module:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    layers[2].weight = layers[0].weight
    return layers


def one_module_twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


def shared_statistics() -> nn.Module:
    norms = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    norms[1].running_mean = norms[0].running_mean
    return norms


NETWORKS = {
    "plain": lambda: nn.Linear(4, 4),
    "tied": tied,
    "one module twice": one_module_twice,
    "shared statistics": shared_statistics,
    "recurrent": lambda: nn.Sequential(nn.LSTM(4, 4, batch_first=True)),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_structure_called_at_a_network_s_tensors_returns_what_the_network_does(kind):
    network, x = NETWORKS[kind]().eval(), torch.randn(3, 4)
    with torch.no_grad():
        for buffer in network.buffers():
            buffer.add_(1)
        expected, found = network(x), call_at(structure_of(network), state_of(network), x)
    first, second = (each[0] if isinstance(each, tuple) else each for each in (expected, found))
    assert torch.equal(first, second)
    assert all(tensor.is_meta for tensor in structure_of(network).state_dict().values())


def test_a_network_s_own_tensors_are_not_read():
    network = tied()
    state = {name: tensor for name, tensor in state_of(network).items() if name != "2.bias"}
    with pytest.raises(RuntimeError, match=r"2\.bias"):
        call_at(network, state, torch.ones(1, 4))
