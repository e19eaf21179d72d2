"""Packing and flattening."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from raysim.numbers.tensors import (
    Layout,
    aligned,
    flatten,
    inner_products,
    is_finite,
    like,
    nbytes,
    norm,
    parameter_names,
    state_of,
    unflatten,
)

TENSORS = {
    "w": torch.arange(6.0).reshape(2, 3),
    "count": torch.tensor(4),
    "half": torch.ones(2, dtype=torch.bfloat16),
}


def test_pack_then_unpack_gives_the_same_tensors():
    layout = Layout.of(TENSORS)
    found = layout.unpack(layout.pack(TENSORS))
    assert list(found) == list(TENSORS)
    assert all(torch.equal(found[n], t) and found[n].dtype == t.dtype for n, t in TENSORS.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
def test_unpacked_tensors_are_aligned_whatever_comes_before_them(dtype):
    tensors = {f"{size}": torch.arange(size).to(dtype) for size in (3, 16, 0, 1, 64, 65, 7)}
    layout = Layout.of(tensors)
    found = layout.unpack(layout.pack(tensors))
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert [tensor.data_ptr() % 64 for tensor in found.values()] == [0] * 7


def test_only_what_is_not_aligned_is_copied():
    whole = torch.arange(40.0)
    assert aligned(whole) is whole
    moved = aligned(whole[5:])
    assert moved.data_ptr() % 64 == 0 and torch.equal(moved, whole[5:])


def test_flatten_names_groups_and_unflatten_undoes_it():
    groups = {"model": {"a.b": torch.ones(1)}, "c": {"x/y": torch.zeros(2)}}
    flat = flatten(groups)
    assert list(flat) == ["model/a.b", "c/x/y"]
    assert {g: list(t) for g, t in unflatten(flat).items()} == {"model": ["a.b"], "c": ["x/y"]}


def test_inner_products_are_of_tensors_of_the_same_name_whatever_their_layout():
    columns = torch.arange(6.0).reshape(3, 2).t()  # [[0, 2, 4], [1, 3, 5]]
    first = {"w": columns, "b": torch.tensor([2.0, 3.0])}
    second = {"b": torch.tensor([10.0, 1.0]), "w": torch.tensor([[1.0, 0, 0], [0, 0, 2]])}
    assert inner_products(first, second).tolist() == [10.0, 23.0]
    assert inner_products(first, first).tolist() == [55.0, 13.0]


def test_nbytes_counts_every_dtype():
    assert nbytes({"all": TENSORS}) == 6 * 4 + 8 + 2 * 2


def test_state_holds_parameters_and_buffers_and_names_only_the_trainable():
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    network[0].bias.requires_grad_(False)
    assert parameter_names(network) == {"0.weight", "1.weight", "1.bias"}
    buffers = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert set(state_of(network)) == parameter_names(network) | {"0.bias"} | buffers


def test_a_norm_does_not_depend_on_the_order_of_the_tensors():
    """A resumed run has them in another order than one that was not interrupted."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        tensors = {name: torch.randn(5, generator=generator) for name in "cadb"}
        assert norm(dict(reversed(tensors.items()))) == norm(tensors)


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_is_found(dtype, bad):
    values = torch.ones(3, 4, dtype=dtype)
    assert is_finite(values) and is_finite(values[:, :0]) and is_finite(torch.arange(3) > 1)
    values[2, 1] = bad if not dtype.is_complex else complex(0, bad)
    assert not is_finite(values.t()) and not is_finite(values.conj())


def test_pairs_of_reals_at_an_odd_place_of_a_vector_become_complex():
    pairs = torch.arange(9.0)[1:].view(2, 2, 2)
    expected = torch.tensor([[1 + 2j, 3 + 4j], [5 + 6j, 7 + 8j]])
    assert torch.equal(like(pairs, expected), expected)
    assert like(pairs, torch.ones(2)) is pairs
