"""Aggregations against NumPy, on whole updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import raysim
from raysim.aggregation import AGGREGATIONS
from raysim.api.components import build_component

Array = npt.NDArray[np.float64]
CUTS = (0, 7, 8, 30)
"""Blocks of unequal sizes."""


def aggregation(name: str, **fields: Any) -> raysim.Aggregation:
    return build_component(AGGREGATIONS.get(name), fields, "aggregation.")


def updates(m: int = 50, n: int = 30, seed: int = 0, far: int = 5) -> Array:
    """Updates of unequal norms, some of them far from the others."""
    draws = np.random.default_rng(seed)
    values = draws.normal(1, draws.uniform(0.5, 2, (m, 1)), (m, n))
    values[draws.permutation(m)[:far]] += draws.normal(0, 30, (far, n))
    return values


def aggregated(
    by: raysim.Aggregation,
    values: Array,
    samples: Any = None,
    last: Array | None = None,
    root: Array | None = None,
) -> tuple[Array, raysim.AggregationPlan]:
    """Return the aggregate, worked out in blocks, and the plan."""
    m = len(values)
    samples = np.arange(1, m + 1) if samples is None else samples
    cuts = [*CUTS[:-1], values.shape[1]]
    last = np.zeros(values.shape[1]) if last is None else last
    blocks = [
        raysim.Updates(
            torch.from_numpy(values[:, a:b].copy()),
            samples,
            np.arange(m),
            torch.from_numpy(last[a:b].copy()),
            torch.from_numpy(ROOT[a:b].copy() if root is None else root[a:b].copy()),
        )
        for a, b in pairwise(cuts)
    ]
    arrived = raysim.ArrivedUpdates(np.arange(m), samples, samples / samples.sum())
    if by.measures:
        arrived = replace(arrived, measured=sum(by.measure(block) for block in blocks))
    plan = by.decide(arrived)
    if plan.weights is not None:
        blocks = [replace(block, weights=plan.weights) for block in blocks]
    return np.concatenate([by.combine(block).numpy() for block in blocks]), plan


def trimmed(values: Array, trim: int) -> Array:
    return np.sort(values, axis=0)[trim : len(values) - trim].mean(axis=0)


def distances(values: Array) -> Array:
    return ((values[:, None] - values) ** 2).sum(axis=2)


def krum_scores(values: Array, f: int) -> list[float]:
    m = len(values)
    rows = (np.delete(row, own) for own, row in enumerate(distances(values)))
    return [float(np.sort(row)[: max(m - f - 2, 1)].sum()) for row in rows]


def multi_krum(values: Array, f: int, s: int) -> Array:
    return values[np.argsort(krum_scores(values, f), kind="stable")[:s]].mean(axis=0)


def bulyan(values: Array, f: int) -> Array:
    left, chosen = [*range(len(values))], []
    while len(chosen) < len(values) - 2 * f:
        chosen.append(left.pop(int(np.argmin(krum_scores(values[left], f)))))
    taken = values[chosen]
    found = []
    for column in taken.T:  # the paper's median: the value with the least sum of distances
        median = min(sorted(column), key=lambda v: round(np.abs(column - v).sum(), 9))
        by_distance = sorted(column, key=lambda v: (abs(v - median), v))
        found.append(np.mean(by_distance[: len(taken) - 2 * f]))
    return np.array(found)


def geometric_median(
    values: Array, alpha: Array, z: Array, nu: float, most: int, tolerance: float
) -> Array:
    def far(z: Array) -> Array:
        return np.linalg.norm(values - z, axis=1)

    for _ in range(most):
        before, b = alpha @ far(z), alpha / np.maximum(nu, far(z))
        z = b @ values / b.sum()
        if abs(before - alpha @ far(z)) < tolerance * (alpha @ far(z)):
            break
    return z


def centred(values: Array, v: Array, tau: float, times: int) -> Array:
    for _ in range(times):
        moved = values - v
        factors = np.minimum(1, tau / np.linalg.norm(moved, axis=1))
        v = v + (moved * factors[:, None]).mean(axis=0)
    return v


def fltrust(values: Array, root: Array) -> Array:
    norms = np.linalg.norm(values, axis=1)
    trust = np.maximum(0, values @ root / norms / np.linalg.norm(root))
    if not trust.sum():
        return np.zeros_like(root)
    return trust / norms @ values * np.linalg.norm(root) / trust.sum()


VALUES = updates()
ROOT = np.random.default_rng(2).normal(0.2, 1, 30)
LAST = updates(1, seed=1, far=0)[0]
SHARES = np.arange(1, 51) / np.arange(1, 51).sum()
ORACLES: dict[str, tuple[str, dict[str, Any], Callable[[], Array]]] = {
    "median": ("median", {}, lambda: np.median(VALUES, axis=0)),
    "trimmed mean of f": ("trimmed_mean", {"byzantine": 6}, lambda: trimmed(VALUES, 6)),
    "trimmed mean": ("trimmed_mean", {"trim": 24}, lambda: trimmed(VALUES, 24)),
    "krum": ("krum", {"byzantine": 5}, lambda: multi_krum(VALUES, 5, 1)),
    "multi-krum": ("multi_krum", {"byzantine": 7}, lambda: multi_krum(VALUES, 7, 41)),
    "multi-krum of 12": (
        "multi_krum",
        {"byzantine": 5, "chosen": 12},
        lambda: multi_krum(VALUES, 5, 12),
    ),
    "bulyan": ("bulyan", {"byzantine": 11}, lambda: bulyan(VALUES, 11)),
    "bulyan of 1": ("bulyan", {}, lambda: bulyan(VALUES, 1)),
    "geometric median": (
        "geometric_median",
        {},
        lambda: geometric_median(VALUES, SHARES, SHARES @ VALUES, 1e-5, 4, 1e-6),
    ),
    "geometric median from 0": (
        "geometric_median",
        {"start": "zero", "nu": 0.1, "iterations": 3, "tolerance": 0.0},
        lambda: geometric_median(VALUES, SHARES, np.zeros(30), 0.1, 3, 0),
    ),
    "geometric median, nu": (
        "geometric_median",
        {"nu": 20.0, "iterations": 90, "tolerance": 1e-3},
        lambda: geometric_median(VALUES, SHARES, SHARES @ VALUES, 20.0, 90, 1e-3),
    ),
    "centred clipping": ("centred_clipping", {}, lambda: centred(VALUES, LAST, 10.0, 1)),
    "centred clipping, 3 times": (
        "centred_clipping",
        {"tau": 4.0, "iterations": 3},
        lambda: centred(VALUES, LAST, 4.0, 3),
    ),
    "fltrust": ("fltrust", {}, lambda: fltrust(VALUES, ROOT)),
    "norm bound": (
        "norm_bound",
        {"norm": 7.5},
        lambda: SHARES * np.minimum(1, 7.5 / np.linalg.norm(VALUES, axis=1)) @ VALUES,
    ),
}


@pytest.mark.parametrize("case", ORACLES)
def test_it_is_numpy_s(case):
    """Of 50 updates of unequal norms, in blocks, at a last aggregate other than 0."""
    name, fields, oracle = ORACLES[case]
    found, _ = aggregated(aggregation(name, **fields), VALUES, last=LAST)
    np.testing.assert_allclose(found, oracle(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("root", [-VALUES[0], np.zeros(30)])
def test_nobody_is_trusted_against_the_server_or_without_a_step(root):
    """The model stays, as well where an update is 0."""
    values = np.concatenate([VALUES[:1], np.zeros((1, 30))])
    found, plan = aggregated(aggregation("fltrust"), values, root=root)
    assert not found.any() and not plan.columns["trust"].any()


@pytest.mark.parametrize("f", [0, 3, 23])
def test_scores_of_krum_add_up_m_f_2_neighbours(f):
    _, plan = aggregated(aggregation("krum", byzantine=f), VALUES)
    np.testing.assert_allclose(plan.columns["krum_score"], krum_scores(VALUES, f), rtol=1e-9)
    assert plan.weights is not None
    assert plan.weights.argmax() == np.argmin(krum_scores(VALUES, f)) and plan.weights.sum() == 1
