"""Costs of large bases: those without weights are those of networks with weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

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


def test_a_line_for_each_number_of_clients():
    found = replace(costs(network_of(SIZES, 8), 3, 32), operations=156e12)
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in rows_of("x", found, 80e9)]
    assert [line[:2] for line in lines] == [["x", str(clients)] for clients in CLIENTS]
    assert [line[4:] for line in lines] == [["yes", f"{clients:.2f}"] for clients in CLIENTS]
