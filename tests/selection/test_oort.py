"""Oort's selection, by hand, as the authors' code has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raysim
from raysim.selection.oort import Oort

NAN = float("nan")


def knowledge(**given: Any) -> raysim.Sampling:
    """Return what is known of 6 clients: two are new, client 5 is slow."""
    known: dict[str, Any] = {
        "number": 4,
        "wanted": 4,
        "candidates": np.arange(6),
        "seconds": np.array([1.0, 2.0, 3.0, 4.0, 5.0, 100.0]),
        "samples": np.array([10, 20, 30, 40, 50, 60]),
        "squared_losses": np.array([4.0, 1.0, NAN, 0.25, NAN, 1.0]),
        "last": np.array([1, 2, 1, 4, 1, 3]),
        "newest": 3,
        "utilities": [1.0] * 4,
        "seed": 0,
    } | given
    kept = {n: np.array(known[n]) for n in ("squared_losses", "last", "newest", "utilities")}
    return raysim.Sampling(
        number=known["number"],
        clients=len(known["samples"]),
        fraction=0.1,
        size=known["wanted"],
        wanted=known["wanted"],
        samples=known["samples"],
        generator=lambda: np.random.default_rng(known["seed"]),
        seconds=lambda clients: known["seconds"][clients],
        available=lambda clients: np.isin(clients, known["candidates"]),
        state=kept,
    )


def seeded(sampling: raysim.Sampling, seed: int) -> raysim.Sampling:
    return replace(sampling, generator=lambda: np.random.default_rng(seed))


def selected(oort: Oort, sampling: raysim.Sampling) -> tuple[list[int], list[int]]:
    """Return the clients that are exploited, which come first, and the others.

    Their results are the same as before: only exploited clients make the utility of a round.
    """
    chosen, results = oort.select(sampling), []
    squared = sampling.state["squared_losses"]
    sampling = replace(
        sampling, state={**sampling.state, "last": np.zeros(len(squared), dtype=np.int64)}
    )
    for client in chosen:
        ones = np.ones(1)
        result = raysim.Results(np.array([client]), ones, {"squared_loss": ones})
        _, metrics = oort.update(sampling, chosen, result)
        results.append(metrics["exploited_utility"] > 0)
    count = sum(results)
    assert results == [True] * count + [False] * (len(chosen) - count)
    assert not np.isnan(squared[chosen[:count]]).any()
    return chosen[:count], chosen[count:]


def test_the_pool_is_what_lies_above_the_cut_off():
    """All clients have results, T is 3 s: half of the cohort is drawn from the pool, by score.

    U is 20, 20, 3, 20, 10, 60, so that (U - 2.997) / 57.003 is 0.298, 0.298, 0, 0.298, 0.123 and 1;
    in round 5 sqrt(0.1 * log(5) / L) is 0.401, 0.284, 0.401, 0.201, 0.401 and 0.232; the last three
    are slow, which leaves (3/4)^2, (3/5)^2 and (3/100)^2 of their scores. The third best is 0.401:
    0.281 is in the pool, and 0.2806 of client 3 is not.
    """
    oort = Oort(epsilon=0.0, least=0.0, percentile=40.0)
    losses = np.array([4.0, 1.0, 0.01, 0.25, 0.04, 1.0])
    found = knowledge(squared_losses=losses, wanted=2)
    drawn = np.zeros(6)
    for seed in range(4000):
        exploited, others = selected(oort, seeded(found, seed))
        assert not others and len({*exploited}) == 2
        drawn[exploited[0]] += 1
    shares = np.array([0.69946, 0.58196, 0.40123, 0, 0, 0])
    assert drawn / 4000 == pytest.approx(shares / shares.sum(), abs=0.03)


def test_scores_are_normed_over_new_clients_too_and_clipped():
    """Of 60 utilities the 98th percentile is the second largest, a new client's 200 samples.

    The least is a new client's 50. In round 5 client 0 has (200 - 49.95) / (1000 - 49.95)
    + sqrt(0.1 * log(5) / 4), and the others (100 - 49.95) / 950.05 + sqrt(0.1 * log(5)); client 3
    takes twice T. Client 60, who is away, would be above all.
    """
    samples, squared = np.full(61, 100), np.ones(61)
    samples[[1, 2, 60]] = 200, 50, 20000
    squared[0], squared[[1, 2]] = 100.0, NAN
    last, seconds = np.ones(61, dtype=np.int64), np.ones(61)
    last[0], seconds[3] = 4, 2.0
    candidates = np.arange(60)
    scores = {0: 0.35853, 3: 0.45386 / 4, 4: 0.45386}
    found = knowledge(
        samples=samples,
        squared_losses=squared,
        last=last,
        seconds=seconds,
        candidates=candidates,
        wanted=1,
    )
    oort = Oort(epsilon=0.0, least=0.0, percentile=50.0)
    drawn = np.zeros(61)
    for seed in range(6000):
        [client], _ = selected(oort, seeded(found, seed))
        drawn[client] += 1
    pool = 56 * scores[4] + scores[0]
    assert drawn[0] / 6000 == pytest.approx(scores[0] / pool, abs=0.004)
    assert drawn[[1, 2, 3, 60]].sum() == 0 and (drawn[4:60] > 0).all()


def test_the_first_cohort_is_uniform():
    """Clients of 10 to 60 samples, the last of which is slow."""
    found = knowledge(squared_losses=np.full(6, NAN), number=0, wanted=2, newest=0, utilities=[])
    drawn = np.zeros(6)
    for seed in range(3000):
        exploited, others = selected(Oort(), seeded(found, seed))
        assert exploited == [] and len({*others}) == 2
        drawn[others] += 1
    assert drawn / 3000 == pytest.approx(np.full(6, 1 / 3), abs=0.03)


def test_new_clients_are_drawn_by_samples_and_speed():
    oort = Oort(epsilon=1.0, decay=1.0, percentile=40.0, alpha=1.0)
    found = knowledge(squared_losses=np.full(6, NAN), wanted=1)
    assert oort.preferred(found, found.seconds(np.arange(6))) == 3.0
    drawn = np.zeros(6)
    for seed in range(4000):
        exploited, explored = selected(oort, seeded(found, seed))
        assert exploited == [] and len(explored) == 1
        drawn[explored] += 1
    weights = found.samples * np.minimum(3 / found.seconds(np.arange(6)), 1)
    weights[weights.argsort(kind="stable")[0]] = 0  # the window holds five
    assert drawn / 4000 == pytest.approx(weights / weights.sum(), abs=0.03)


@pytest.mark.parametrize(
    ("number", "least", "exploited"), [(1, 0.2, 2), (2, 0.2, 3), (9, 0.2, 3), (9, 0.6, 1)]
)
def test_epsilon_decays_to_its_least(number, least, exploited):
    """Of 4, 1 - 0.9 * 0.5^(R-1) in round R: 2.2 in round 2, 3.1 in round 3, then to 3.2 or 1.6."""
    oort = Oort(epsilon=0.9, decay=0.5, least=least)
    found, others = selected(oort, knowledge(number=number, utilities=[1.0] * number))
    assert len(found) == exploited and len(found) + len(others) == 4


@pytest.mark.parametrize(("newest", "exploited"), [(4, 2), (3, 4), (0, 4)])
def test_a_round_after_the_last_new_client_all_are_exploited(newest, exploited):
    """In round 5 nobody is new; somebody was in round 4 if he had his first result in that."""
    oort = Oort(epsilon=0.5, decay=1.0)
    found = knowledge(squared_losses=np.full(6, 1.0), newest=newest)
    drawn = np.zeros(6)
    for seed in range(500):
        chosen, others = selected(oort, seeded(found, seed))
        assert (len(chosen), len(others)) == (exploited, 4 - exploited)
        drawn[others] += 1
    assert (drawn > 0).all() == (exploited == 2)


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 9), min_size=6, max_size=6),
    st.sets(st.integers(0, 5)),
    st.sets(st.integers(0, 5), min_size=1),
    st.integers(1, 6),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_a_selection_is_of_distinct_candidates(losses, new, there, wanted, number, newest):
    squared = np.array(losses)
    squared[sorted(new)] = NAN
    found = knowledge(
        squared_losses=squared,
        candidates=np.array(sorted(there)),
        wanted=wanted,
        number=number,
        newest=newest,
        utilities=[float(sum(losses))] * number,
    )
    exploited, others = selected(Oort(), found)
    chosen = [*exploited, *others]
    assert len(chosen) == len({*chosen}) == min(wanted, len(there))
    assert {*chosen} <= there and not {*exploited} & new


def test_the_pacer_by_hand():
    """Steps of two rounds; [u1, u2], [u3, u4], [u5, u6] are compared in rounds 5 and 7."""
    oort = Oort(pacer_step=2, pacer_delta=20.0, percentile=40.0)

    def percentile(*utilities: float) -> float:
        seconds = np.arange(100.0)
        found = knowledge(utilities=utilities, number=len(utilities))
        return oort.preferred(found, seconds)

    assert percentile(0.0, 4.0, 4.0) == 40  # round 4
    assert percentile(8.0, 4.0, 8.0, 4.4) == 60  # round 5: 12.4 against 12
    assert percentile(8.0, 4.0, 6.0, 3.0) == 40  # 9 against 12
    assert percentile(1.0, 0.0, 3.0, 3.0) == 20  # 6 against 1
    assert percentile(8.0, 4.0, 8.0, 4.4, 12.0) == 60  # round 6
    assert percentile(8.0, 4.0, 8.0, 4.4, 8.0, 4.0) == 80  # round 7, flat again
    assert percentile(*[5.0] * 20) == float("inf")
