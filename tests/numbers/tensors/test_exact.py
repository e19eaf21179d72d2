"""Exact sums against float64, in any order and grouping."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from raysim.errors import RunError
from raysim.numbers.tensors import Layout
from raysim.numbers.tensors.exact import BLOCK, SCALE, Addend, ExactSum
from raysim.numbers.tensors.magnitudes import LIMIT
from raysim.numbers.tensors.packed_totals import join, split

LAYOUT = Layout.of({"a": torch.zeros(3), "n": torch.zeros(2, dtype=torch.int64)})
values = st.lists(st.floats(-1e5, 1e5, width=32, allow_subnormal=False), min_size=3, max_size=3)
clients = st.lists(st.tuples(values, st.integers(1, 10_000)), min_size=1, max_size=8)


def summed(parts: list[tuple[list[float], int]], total: int) -> ExactSum:
    result = ExactSum(LAYOUT)
    for value, weight in parts:
        counts = torch.tensor([weight, -weight])
        addend = Addend.later(LAYOUT, {"a": torch.tensor(value), "n": counts})()
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
        result.add(Addend.later(result.layout, {"a": part})(), fraction)
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
        (complex(0, float("nan")), "not finite"),
    ],
)
def test_bad_values_name_the_tensor_and_add_nothing(value, problem):
    tensors = {"a": torch.tensor([0.0, value, 0.0]), "n": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(RunError, match=rf"{problem}.*tensor a"):
        Addend.later(Layout.of(tensors), tensors)()


def test_the_range_cannot_overflow():
    assert LIMIT * SCALE + 1e6 < 2**63


DTYPES = {np.float32: torch.float32, np.float64: torch.float64}


@st.composite
def any_clients(draw: Any) -> tuple[torch.dtype, list[tuple[Any, int]], int]:
    """Clients with any finite values of a dtype, small ones beside them, and a total weight."""
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    width = 8 * np.dtype(dtype).itemsize
    anything = st.floats(width=width, allow_nan=False, allow_infinity=False)
    usual = st.floats(-1.25e5, 1.25e5, width=width)
    rows = st.lists(anything | usual, min_size=3, max_size=3)
    parts = draw(st.lists(st.tuples(rows, st.integers(1, 10_000)), min_size=1, max_size=6))
    lost = draw(st.integers(0, 20_000))
    found = [(np.array(row, dtype), weight) for row, weight in parts]
    return DTYPES[dtype], found, lost + sum(weight for _, weight in found)


def sum_of(dtype: torch.dtype, parts: list[tuple[Any, int]], total: int) -> ExactSum:
    layout = Layout.of({"a": torch.zeros(3, dtype=dtype), "b": torch.zeros(3, dtype=dtype)})
    result = ExactSum(layout)
    for values, weight in parts:
        own = torch.from_numpy(values)
        tensors = {"a": own, "b": own.flip(0)}
        result.add(Addend.later(layout, tensors)(), weight / total)
    return result


@given(any_clients(), st.randoms(use_true_random=False), st.integers(0, 6), st.booleans())
def test_any_finite_values_have_the_same_mean_in_any_order_and_tree(drawn, random, cut, by_network):
    dtype, parts, total = drawn
    arrived = sum(weight for _, weight in parts)
    expected = sum_of(dtype, parts, total).mean(arrived, total)
    shuffled = random.sample(parts, len(parts))
    merged = ExactSum(sum_of(dtype, parts, total).layout)
    for half in (shuffled[:cut], shuffled[cut:]):
        part = sum_of(dtype, half, total)
        part.leaves_node = by_network
        merged.merge(deepcopy(part))  # as pickle does
    for name, tensor in merged.mean(arrived, total).items():
        assert torch.equal(tensor, expected[name])
        assert torch.equal(tensor, expected["a" if name == "b" else "b"].flip(0))
        assert tensor.isfinite().all() and tensor.dtype == dtype


@given(any_clients())
def test_the_mean_of_any_finite_values_is_the_weighted_mean(drawn):
    dtype, parts, total = drawn
    arrived = sum(weight for _, weight in parts)
    found = sum_of(dtype, parts, total).mean(arrived, total)["a"].tolist()
    for i, mean in enumerate(found):
        terms = [Fraction(float(values[i])) * weight / arrived for values, weight in parts]
        exact = sum(terms)
        rounded = Fraction(torch.finfo(dtype).eps) * abs(exact)
        # Each term is rounded to 2^-46 of its sum's unit, that is 2^(-46+16) of its own magnitude
        # over 1.3e5, then every sum to 53 bits.
        of_terms = (
            sum(
                Fraction(total, arrived)
                * max(Fraction(2) ** -46, abs(Fraction(float(values[i]))) / 2**46)
                for values, _ in parts
            )
            + sum(map(abs, terms)) / 2**49
        )
        assert abs(Fraction(mean) - exact) <= rounded + of_terms


@given(any_clients())
def test_values_within_the_limit_keep_their_bits_beside_larger_ones(drawn):
    dtype, parts, total = drawn
    arrived = sum(weight for _, weight in parts)
    found = sum_of(dtype, parts, total).mean(arrived, total)["a"]
    for i in range(3):
        if all(abs(values[i]) <= LIMIT for values, _ in parts):
            alone = [(np.full(3, values[i]), weight) for values, weight in parts]
            assert found[i] == sum_of(dtype, alone, total).mean(arrived, total)["a"][i]


@pytest.mark.parametrize(
    ("value", "k"), [(LIMIT, 0), (np.nextafter(LIMIT, 1e6), 1), (LIMIT * 2**16, 1), (1.7e308, 63)]
)
def test_a_magnitude_is_added_to_the_finest_sum_that_can_hold_it(value, k):
    tensor = torch.tensor([-value, 1.0], dtype=torch.float64)
    result = ExactSum(Layout.of({"a": tensor}))
    for fraction in (0.75, 0.25):
        result.add(Addend.later(result.layout, {"a": tensor})(), fraction)
    parts = [round(-value * (fraction * 2.0 ** (46 - 16 * k))) for fraction in (0.75, 0.25)]
    assert -(2**63) < sum(parts) < 2**63
    expected = torch.tensor([sum(parts) * 2.0**-46 * 2.0 ** (16 * k), 1.0], dtype=torch.float64)
    assert torch.equal(result.mean(1, 1)["a"], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_mean_of_the_largest_numbers_is_finite(dtype):
    tensor = torch.full((2,), torch.finfo(dtype).max, dtype=dtype)
    for clients in range(1, 40):
        result = ExactSum(Layout.of({"a": tensor}))
        for _ in range(clients):
            result.add(Addend.later(result.layout, {"a": tensor})(), 1 / clients)
        torch.testing.assert_close(result.mean(1, 1)["a"], tensor, rtol=1e-14, atol=0)


def test_the_mean_does_not_round_the_largest_number_to_infinity():
    weights, total = [7215, 8862, 6668, 5004], 36_609
    largest = np.full(3, torch.finfo(torch.float64).max)
    result = sum_of(torch.float64, [(largest, weight) for weight in weights], total)
    assert result.mean(sum(weights), total)["a"].tolist() == largest.tolist()


@pytest.mark.parametrize("order", [*permutations(range(4))])
def test_coarser_sums_are_added_up_in_the_same_order(order):
    magnitudes = np.array([1e3, 1e8, 1e13, 1e18])
    values = np.random.default_rng(0).uniform(0.1, 1, size=(4, 200)) * magnitudes[:, None]
    layout = Layout.of({"a": torch.from_numpy(values[0])})
    found, expected = ExactSum(layout), ExactSum(layout)
    for total, places in ((expected, range(4)), (found, order)):
        for place in places:
            total.add(Addend.later(layout, {"a": torch.from_numpy(values[place])})(), 0.25)
    assert torch.equal(found.mean(1, 1)["a"], expected.mean(1, 1)["a"])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_values_are_summed_as_pairs_of_reals(dtype):
    tensors = [torch.tensor([[1.5 - 2j, 3e9j], [0.25, -1e-3j]], dtype=dtype) * s for s in (1, 3)]
    layout = Layout.of({"a": tensors[0], "b": torch.ones(1, dtype=dtype), "c": torch.ones(2)})
    result = ExactSum(layout)
    for tensor in tensors:
        addend = {"a": tensor, "b": tensor[0, :1].conj(), "c": tensor.real[0]}
        result.add(Addend.later(layout, addend)(), 0.5)
    found = result.mean(1, 1)
    torch.testing.assert_close(found["a"], tensors[0] * 2, rtol=1e-6, atol=1e-13)
    assert found["b"].tolist() == [3 + 4j] and found["c"].tolist() == [3, 0]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**47), 2**47 - 1)))
@example([2**47 - 1, -(2**47), -1, 0, 2**32])
@example([2**47, 0])
@example([0, -(2**47) - 1])
def test_totals_that_leave_the_node_are_the_same_in_fewer_bytes(totals):
    array = np.array(totals, dtype=np.int64)
    parts = split(array)
    assert join(parts).tolist() == totals
    large = sum(not -(2**47) <= total < 2**47 for total in totals)
    sent = min(6 * len(totals) + 16 * large, 8 * len(totals))
    assert sum(part.nbytes for part in parts) == sent


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
