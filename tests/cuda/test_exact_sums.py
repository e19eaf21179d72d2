"""Exact sums on the device: the CPU's, client by client, and of a stack at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.numbers.tensors import Layout, Tensors, exact
from raysim.numbers.tensors.exact import Addend, ExactSum, StackAddend
from tests.cuda.device import CudaDevice

K = 5


def stack_of(seed: int, largest: float = 1.0) -> dict[str, torch.Tensor]:
    """Return tensors [K, ...] of clients; those of some dtypes are not summed but maximised."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(K, 7, 3, generator=generator) * largest
    return {
        "a": a,
        "b": torch.randn(K, 2, generator=generator, dtype=torch.float64),
        "c": torch.view_as_complex(torch.randn(K, 3, 2, generator=generator)),
        "n": torch.randint(-9, 9, (K, 2), generator=generator),
        "scalar": torch.randn(K, generator=generator),
    }


def of_client(tensors: Tensors, k: int) -> dict[str, torch.Tensor]:
    return {name: tensor[k] for name, tensor in tensors.items()}


def one_by_one(tensors: Tensors, fractions: list[float]) -> dict[str, torch.Tensor]:
    total = ExactSum(Layout.of(of_client(tensors, 0)))
    for k, fraction in enumerate(fractions):
        total.add(Addend.later(total.layout, of_client(tensors, k))(), fraction)
    total.finish()
    return total.mean(1, 1)


def at_once(tensors: Tensors, fractions: list[float]) -> dict[str, torch.Tensor]:
    addend = StackAddend.later(tensors)()
    assert addend is not None
    total = ExactSum(addend.layout)
    total.add_stack(addend, fractions)
    total.finish()
    return total.mean(1, 1)


@pytest.mark.parametrize("block", [2**28, 8 * 7 * 2, 8 * 5])
@pytest.mark.parametrize("largest", [1.0, 3e4])  # the larger ones cannot be rounded by an addend
def test_a_stack_is_its_clients_one_by_one_on_the_device_and_on_the_cpu(
    monkeypatch, block, largest
):
    monkeypatch.setattr(exact, "STACK_BLOCK", block)
    fractions = [float(each) for each in np.array([1, 5, 2, 7, 3]) / 18]
    tensors = stack_of(1, largest)
    expected = one_by_one(tensors, fractions)
    found = [at_once(tensors, fractions)]
    with CudaDevice() as gpu:
        there = {name: tensor.cuda() for name, tensor in tensors.items()}
        found.append(one_by_one(there, fractions))
        before = gpu.counts["syncs"]
        found.append(at_once(there, fractions))
        assert gpu.counts["syncs"] - before <= 2 * 4  # of all clients: a check, and totals, a dtype
    for mean in found:
        assert all(torch.equal(mean[name], expected[name]) for name in expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -2e5])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_stack_with_a_value_that_one_client_must_explain_is_taken_one_by_one(device, value):
    tensors = stack_of(2)
    tensors["b"][3, 1] = value
    with CudaDevice():
        assert StackAddend.later({name: t.to(device) for name, t in tensors.items()})() is None


@pytest.mark.parametrize("fraction", [0.5, 1e-4])  # the smaller one is rounded by an addend
def test_a_client_with_larger_values_adds_all_its_tensors_on_the_device(fraction):
    tensors = {"a": torch.tensor(1.5), "b": torch.tensor([-1.0, 2e5, 3.0])}

    def mean_of(tensors: Tensors) -> dict[str, torch.Tensor]:
        total = ExactSum(Layout.of(tensors))
        total.add(Addend.later(total.layout, tensors)(), fraction)
        total.finish()
        return total.mean(1, 1)

    expected = mean_of(tensors)
    with CudaDevice():
        found = mean_of({name: tensor.cuda() for name, tensor in tensors.items()})
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("tensor", [torch.arange(6).view(3, 2), torch.zeros(3, 0)])
def test_a_stack_of_integers_or_of_nothing_has_a_sum(tensor):
    addend = StackAddend.later({"n": tensor})()
    assert addend and addend.largest == [0.0] * 3
