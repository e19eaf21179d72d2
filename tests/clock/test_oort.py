"""Oort's selection, against the algorithm as it is printed, client by client."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.clock.oort import Feedback, Oort

NAN = float("nan")


def feedback(**given: Any) -> Feedback:
    """Return what is known of 6 clients: two are new, client 5 is slow."""
    known: dict[str, Any] = {
        "number": 4,
        "wanted": 4,
        "candidates": np.arange(6),
        "seconds": np.array([1.0, 2.0, 3.0, 4.0, 5.0, 100.0]),
        "samples": np.array([10, 20, 30, 40, 50, 60]),
        "squared_losses": np.array([4.0, 1.0, NAN, 0.25, NAN, 1.0]),
        "last": np.array([1, 2, 1, 4, 1, 3]),
        "utilities": [1.0] * 4,
        "generator": np.random.default_rng(0),
    }
    return Feedback(**(known | given))


def scores_as_printed(clock: Oort, found: Feedback) -> dict[int, float]:
    """Return the score of each client with results, by a loop."""
    worth = {
        int(c): found.samples[c] * math.sqrt(found.squared_losses[c])
        for c in found.candidates
        if not math.isnan(found.squared_losses[c])
    }
    ordered = sorted(worth.values())
    clip = ordered[min(int(len(ordered) * 0.98), len(ordered) - 1)]
    low = ordered[0] * 0.999
    spread = max(ordered[-1] - low, 1e-4)
    preferred = clock.preferred(found)
    scores = {}
    for client, utility in worth.items():
        score = (min(utility, clip) - low) / spread
        score += math.sqrt(0.1 * math.log(found.number + 1) / found.last[client])
        if found.seconds[client] > preferred:
            score *= (preferred / found.seconds[client]) ** clock.alpha
        scores[client] = score
    return scores


def test_the_pool_is_what_lies_above_the_cut_off():
    """All clients have results: half of the cohort is drawn from the pool, by score."""
    clock = Oort(epsilon=0.0, least=0.0, percentile=40.0)
    losses = np.array([4.0, 1.0, 0.01, 0.25, 0.04, 1.0])
    found = feedback(squared_losses=losses, wanted=2)
    scores = scores_as_printed(clock, found)
    penalty = np.minimum(clock.preferred(found) / found.seconds, 1) ** 2
    assert clock._scores(found, np.arange(6)) * penalty == pytest.approx([*scores.values()])
    cut = 0.7 * sorted(scores.values(), reverse=True)[2]
    pool = [client for client, score in scores.items() if score >= cut]
    assert 2 < len(pool) < 6 and 5 not in pool  # client 5 is worth most, and slow
    drawn = np.zeros(6)
    for seed in range(4000):
        exploited, others = clock.select(replace(found, generator=np.random.default_rng(seed)))
        assert not others and len({*exploited}) == 2 and {*exploited} <= {*pool}
        drawn[exploited[0]] += 1
    shares = np.array([scores.get(c, 0) if c in pool else 0 for c in range(6)])
    assert drawn / 4000 == pytest.approx(shares / shares.sum(), abs=0.03)


def test_new_clients_are_drawn_by_samples_and_speed():
    clock = Oort(epsilon=1.0, decay=1.0, percentile=40.0, alpha=1.0)
    found = feedback(squared_losses=np.full(6, NAN), wanted=1)
    assert clock.preferred(found) == 3.0
    drawn = np.zeros(6)
    for seed in range(4000):
        exploited, explored = clock.select(replace(found, generator=np.random.default_rng(seed)))
        assert exploited == [] and len(explored) == 1
        drawn[explored] += 1
    weights = found.samples * np.minimum(3 / found.seconds, 1)
    weights[weights.argsort(kind="stable")[0]] = 0  # the window holds five
    assert drawn / 4000 == pytest.approx(weights / weights.sum(), abs=0.03)


@pytest.mark.parametrize(("number", "exploited"), [(0, 0), (4, 1), (9, 2), (30, 3)])
def test_epsilon_decays_to_its_least(number, exploited):
    """4 * (1 - 0.9 * 0.9^R), R the round from 1: 0.76, 1.87, 2.74, then 4 * 0.8."""
    clock = Oort(epsilon=0.9, decay=0.9, least=0.2)
    found, others = clock.select(feedback(number=number, utilities=[1.0] * number))
    assert len(found) == exploited and len(found) + len(others) == 4


def test_without_new_clients_all_are_exploited():
    found, others = Oort().select(feedback(squared_losses=np.full(6, 1.0)))
    assert (len(found), others) == (4, [])


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 9), min_size=6, max_size=6),
    st.sets(st.integers(0, 5)),
    st.sets(st.integers(0, 5), min_size=1),
    st.integers(1, 6),
    st.integers(0, 60),
)
def test_a_selection_is_of_distinct_candidates(losses, new, there, wanted, number):
    squared = np.array(losses)
    squared[sorted(new)] = NAN
    found = feedback(
        squared_losses=squared,
        candidates=np.array(sorted(there)),
        wanted=wanted,
        number=number,
        utilities=[float(sum(losses))] * number,
    )
    exploited, others = Oort().select(found)
    chosen = [*exploited, *others]
    assert len(chosen) == len({*chosen}) == min(wanted, len(there))
    assert {*chosen} <= there and not {*exploited} & new


def test_the_pacer_by_hand():
    """Steps of two rounds; sums of [0, u1], [u2, u3], [u4, u5] are compared in rounds 4 and 6."""
    clock = Oort(pacer_step=2, pacer_delta=20.0, percentile=40.0)

    def percentile(*utilities: float) -> float:
        seconds = np.arange(100.0)
        found = feedback(utilities=utilities, number=len(utilities), seconds=seconds)
        return clock.preferred(found)

    assert percentile(8.0, 4.0) == 40  # round 3
    assert percentile(8.0, 4.0, 4.4) == 60  # round 4: 8.4 against 8
    assert percentile(8.0, 3.0, 3.0) == 40  # 6 against 8
    assert percentile(1.0, 3.0, 3.0) == 20  # 6 against 1
    assert percentile(8.0, 4.0, 4.4, 4.0, 4.4) == 80  # round 6, flat again
    assert percentile(*[5.0] * 20) == float("inf")
