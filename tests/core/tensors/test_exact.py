"""Exact sums against float64, in any order and grouping."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from raysim.core.errors import RunError
from raysim.core.tensors import Layout
from raysim.core.tensors.exact import BLOCK, LIMIT, SCALE, Addend, ExactSum
from raysim.core.tensors.six_bytes import join, split

LAYOUT = Layout.of({"a": torch.zeros(3), "n": torch.zeros(2, dtype=torch.int64)})
values = st.lists(st.floats(-1e5, 1e5, width=32, allow_subnormal=False), min_size=3, max_size=3)
clients = st.lists(st.tuples(values, st.integers(1, 10_000)), min_size=1, max_size=8)


def summed(parts: list[tuple[list[float], int]], total: int) -> ExactSum:
    result = ExactSum(LAYOUT)
    for value, weight in parts:
        counts = torch.tensor([weight, -weight])
        addend = Addend.of(LAYOUT, {"a": torch.tensor(value), "n": counts})
        result.add(addend, weight / total)
    return result


@given(clients, st.randoms(use_true_random=False), st.integers(0, 8))
def test_order_and_split_do_not_matter(parts, random, cut):
    total = sum(weight for _, weight in parts)
    expected = summed(parts, total).mean(total, total)
    shuffled = random.sample(parts, len(parts))
    merged = ExactSum(LAYOUT)
    for half in (shuffled[:cut], shuffled[cut:]):
        merged.merge(summed(half, total))
    found = merged.mean(total, total)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@given(clients)
def test_mean_is_the_weighted_mean(parts):
    total = sum(weight for _, weight in parts)
    found = summed(parts, total).mean(total, total)
    for i in range(3):
        exact = sum(
            Fraction(float(np.float32(value[i]))) * weight for value, weight in parts
        ) / Fraction(total)
        error = abs(Fraction(float(found["a"][i])) - exact)
        assert error <= abs(exact) * Fraction(2) ** -24 + len(parts) * Fraction(2) ** -46
    largest = max(weight for _, weight in parts)
    smallest = min(weight for _, weight in parts)
    assert found["n"].tolist() == [largest, -smallest]


@given(clients)
def test_dropped_clients_need_no_second_pass(parts):
    planned = sum(weight for _, weight in parts) + 500
    arrived = planned - 500
    found = summed(parts, planned).mean(arrived, planned)["a"]
    direct = summed(parts, arrived).mean(arrived, arrived)["a"]
    assert torch.allclose(found, direct, rtol=1e-6, atol=1e-12 * planned / arrived)


def test_one_client_keeps_its_bits():
    value = torch.tensor([1.1, -3e-7, 65_000.3])
    found = summed([(value.tolist(), 7)], 7).mean(7, 7)["a"]
    assert torch.equal(found, value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("largest", [1.0, 50_000.0])
def test_every_value_is_rounded_once(dtype, largest):
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(BLOCK + 7, generator=generator).to(dtype) for _ in range(2)]
    parts[0][1] = -largest
    fractions = (0.3, 0.7)
    result = ExactSum(Layout.of({"a": parts[0]}))
    for part, fraction in zip(parts, fractions, strict=True):
        result.add(Addend.of(result.layout, {"a": part}), fraction)
    first, second = (
        [round(value * (fraction * SCALE)) for value in part.tolist()]
        for part, fraction in zip(parts, fractions, strict=True)
    )
    totals = result.totals()[dtype].tolist()
    assert totals[: BLOCK + 7] == [a + b for a, b in zip(first, second, strict=True)]
    assert not any(totals[BLOCK + 7 :])  # what aligns a tensor after it


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "not finite"),
        (float("inf"), "not finite"),
        (float("-inf"), "not finite"),
        (LIMIT * 1.01, "out of range"),
        (LIMIT * -1.01, "out of range"),
    ],
)
def test_bad_values_name_the_tensor_and_add_nothing(value, problem):
    tensors = {"a": torch.tensor([0.0, value, 0.0]), "n": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(RunError, match=rf"{problem}.*tensor a"):
        Addend.of(LAYOUT, tensors)


def test_the_range_cannot_overflow():
    assert LIMIT * SCALE + 1e6 < 2**63


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**47), 2**47 - 1)))
@example([2**47 - 1, -(2**47), -1, 0, 2**32])
@example([2**47, 0])
@example([0, -(2**47) - 1])
def test_totals_that_leave_the_node_are_the_same_in_fewer_bytes(totals):
    array = np.array(totals, dtype=np.int64)
    parts = split(array)
    assert join(parts).tolist() == totals
    large = sum(not -(2**47) <= total < 2**47 for total in totals)
    assert sum(part.nbytes for part in parts) == 6 * len(totals) + 16 * large


@given(clients, st.booleans())
def test_a_pickled_sum_has_the_same_totals_and_can_be_added_to(parts, leaves_node):
    total = sum(weight for _, weight in parts)
    expected, sent = summed(parts * 2, 2 * total), summed(parts, 2 * total)
    sent.leaves_node = leaves_node
    found = deepcopy(sent)  # as pickle does
    found.merge(summed(parts, 2 * total))
    assert not found.leaves_node
    for dtype, flat in expected.totals().items():
        assert torch.equal(found.totals()[dtype], flat)
