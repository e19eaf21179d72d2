"""Costs of large bases: those without weights are those of networks with weights."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.benchmarks.large_bases import CLIENTS, costs, network_of, rows_of

pytestmark = pytest.mark.ci

SIZES = {
    **{"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 300},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
}
ADAPTERS = 2 * 8 * (64 + 64 + 64 + 32)
"""Of queries and values in two layers."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_costs_without_weights_are_those_with_them(dtype):
    with torch.device("meta"):
        found = costs(network_of(SIZES, 8, dtype), 3, 32)
    network = network_of(SIZES, 8, dtype)
    expected = costs(network, 3, 32)
    assert found.estimate == expected.estimate
    assert found.trained == expected.trained == 4 * ADAPTERS
    frozen = sum(p.nbytes for p in network.parameters() if not p.requires_grad)
    assert found.base == expected.base == frozen
    assert 0.8 < found.kept / expected.kept < 1.25  # attention is fused on a CPU


def test_a_frozen_base_costs_its_bytes_once():
    network = network_of(SIZES, 8)
    found = costs(network, 3, 32)
    wider = costs(network_of({**SIZES, "vocab_size": 300 + 1000}, 8), 3, 32)
    assert wider.base - found.base == 1000 * 64 * 2
    assert found.least(8) - found.least(4) == 4 * (found.kept + 4 * found.trained)
    assert found.least(4) < found.estimate.fixed + 4 * found.estimate.each
    for parameter in network.parameters():
        parameter.requires_grad_(True)
        if type(parameter) is not nn.Parameter:
            parameter.__class__ = nn.Parameter
    whole = costs(network, 3, 32)
    assert whole.base == 0
    assert whole.estimate.each - found.estimate.each == (3 + 2) * found.base


class Live(TorchDispatchMode):
    """Counts the bytes of the tensors that operations return, while these are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.alive: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        returned = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(returned):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor.untyped_storage())
        return returned

    def add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self.alive:
            self.alive.add(storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.remove, storage._cdata, storage.nbytes())

    def remove(self, place: int, size: int) -> None:
        self.alive.discard(place)
        self.now -= size


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_estimate_is_what_a_stack_takes_at_its_peak(dtype):
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024}
    network = network_of({**SIZES, **sizes, "vocab_size": 4000}, 8, dtype)
    found = costs(network, 4, 64)
    trained = {n: torch.stack([p] * 4) for n, p in network.named_parameters() if p.requires_grad}
    x = torch.randint(0, 4000, (4, 4, 64))

    def loss(tensors, x):
        logits = functional_call(network, tensors, (x,))
        return nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten())

    with Live() as live:
        vmap(grad(loss))({name: tensor.detach() for name, tensor in trained.items()}, x)
    assert 0.7 < live.peak / 4 / found.estimate.each < 1
    assert 2.5 < live.peak / 4 / found.kept < 3.5


def test_a_line_for_each_number_of_clients():
    found = replace(costs(network_of(SIZES, 8), 3, 32), operations=156e12)
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in rows_of("x", found, 80e9)]
    assert [line[:2] for line in lines] == [["x", str(clients)] for clients in CLIENTS]
    assert [line[4:] for line in lines] == [["yes", f"{clients:.2f}"] for clients in CLIENTS]
