"""Selections by hand: shares, orders and states, with clients that are away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.api.method import METHODS  # noqa: F401 - registers what a run needs
from raysim.api.selection import History, Sampling
from raysim.selection import SELECTIONS
from raysim.selection.poisson import Poisson
from raysim.selection.power_of_choice import PowerOfChoice
from raysim.selection.reshuffled import Reshuffled
from raysim.selection.round_robin import RoundRobin
from raysim.selection.weighted import Weighted

SAMPLES = np.array([10, 20, 30, 40, 55, 45])
NAN = float("nan")


def known(seed: int = 0, wanted: int = 2, **more: Any) -> Sampling:
    """Return what is known of 6 clients, of which none is away."""
    clients = len(more.get("samples", SAMPLES))
    plain = Sampling(
        number=3,
        clients=clients,
        fraction=0.3,
        size=wanted,
        wanted=wanted,
        samples=SAMPLES,
        generator=lambda purpose="": np.random.default_rng([seed, len(purpose)]),
        seconds=lambda chosen: np.ones(len(chosen)),
        history=History.empty(clients),
    )
    return replace(plain, **more)


def away(*clients: int) -> dict[str, Any]:
    return {"waits": False, "available": lambda some: ~np.isin(some, clients)}


def shares(selection: raysim.Selection, draws: int, **more: Any) -> Any:
    """Return the share of rounds in which each client takes part."""
    counts = np.zeros(len(SAMPLES))
    for seed in range(draws):
        counts[selection.select(known(seed, **more))] += 1
    return counts / draws


def test_weighted_draws_by_samples():
    """Of one client in proportion to them; of two, the second among those that are left."""
    assert shares(Weighted(), 4000, wanted=1) == pytest.approx(SAMPLES / 200, abs=0.025)
    p = SAMPLES / 200
    second = [sum(p[j] * p[i] / (1 - p[j]) for j in range(6) if j != i) for i in range(6)]
    assert shares(Weighted(), 4000) == pytest.approx(p + second, abs=0.025)
    here = SAMPLES * (np.arange(6) != 5) / 155
    assert shares(Weighted(), 2000, wanted=1, **away(5)) == pytest.approx(here, abs=0.035)


def test_poisson_draws_each_client_by_itself():
    """Two clients both take part in C^2 of the rounds."""
    counts, both = np.zeros(6), 0
    for seed in range(4000):
        chosen = Poisson().select(known(seed, wanted=2))
        counts[chosen] += 1
        both += {0, 1} <= {*chosen}
    assert counts / 4000 == pytest.approx(np.full(6, 0.3), abs=0.03)
    assert both / 4000 == pytest.approx(0.09, abs=0.02)
    assert shares(Poisson(), 2000, **away(1, 2))[[1, 2]].tolist() == [0, 0]


def test_round_robin_takes_clients_in_turn():
    """Also from the last to the first; client 3 is away in the second round and misses its turn."""
    selection, state, found = RoundRobin(), RoundRobin().init(6), []
    for gone in ((), (3,), (), ()):
        now = known(wanted=2, state=state, **away(*gone))
        found.append(selection.select(now))
        state, _ = selection.update(now, found[-1], None)
    assert found == [[0, 1], [2, 4], [5, 0], [1, 2]]


def test_power_of_choice_prefers_large_losses_and_unseen_clients():
    """With all clients drawn; those without a loss come in the order of the draw."""
    for losses, expected in (
        ([1.0, 2.0, 3.0, 0.5, 0.2, 0.1], {(2, 1, 0)}),
        ([1.0, NAN, 3.0, NAN, 0.2, 0.1], {(1, 3, 2), (3, 1, 2)}),
    ):
        history = replace(History.empty(6), losses=np.array(losses))
        now = [known(seed, wanted=3, history=history) for seed in range(40)]
        assert {tuple(PowerOfChoice(d=6).select(each)) for each in now} == expected


def test_power_of_choice_draws_its_candidates_by_samples():
    """With d = m it is the draw; with more, the best of it: client 5 has the least loss."""
    history = replace(History.empty(6), losses=np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0]))
    assert shares(PowerOfChoice(d=1), 4000, wanted=1, history=history) == pytest.approx(
        SAMPLES / 200, abs=0.025
    )
    p = SAMPLES / 200
    # Client i is the best of two unless a smaller number is drawn with it.
    best = [
        sum(p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j]) for j in range(i + 1, 6))
        for i in range(6)
    ]
    assert shares(PowerOfChoice(d=2), 4000, wanted=1, history=history) == pytest.approx(
        best, abs=0.025
    )


@given(st.integers(2, 12), st.data())
def test_reshuffled_clients_take_part_once_in_so_many_rounds(clients, data):
    """In K // m rounds or fewer, whoever is away; all of them if nobody is, and no other draw."""
    wanted = data.draw(st.integers(1, clients))
    most = clients // wanted
    rounds = data.draw(st.none() | st.integers(1, most))
    selection, history, length = Reshuffled(rounds=rounds), History.empty(clients), rounds or most
    for epoch in range(3):
        seen: list[int] = []
        for number in range(epoch * length, (epoch + 1) * length):
            gone = data.draw(st.sets(st.integers(0, clients - 1), max_size=epoch))
            more = {"samples": np.ones(clients), "history": history, "number": number}
            found = selection.select(known(number, wanted, **more, **away(*gone)))
            here = {*range(clients)} - {*seen} - gone
            assert {*found} <= here and len(found) == min(wanted, len(here))
            history.add(number + 1, dict.fromkeys(found, 0.0))
            seen += found
        assert len({*seen}) == len(seen)


def test_reshuffled_draws_all_clients_alike():
    assert shares(Reshuffled(), 4000, number=0) == pytest.approx(np.full(6, 1 / 3), abs=0.03)
    with pytest.raises(raysim.SettingsError, match="rounds=4: must be at most 3, as each client"):
        Reshuffled(rounds=4).select(known())


@given(
    st.sampled_from(sorted(SELECTIONS)),
    st.lists(st.integers(1, 50), min_size=2, max_size=12),
    st.data(),
)
def test_every_selection_is_of_distinct_clients_that_are_there(name, samples, data):
    clients = len(samples)
    gone = data.draw(st.sets(st.integers(0, clients - 1)))
    wanted = data.draw(st.integers(1, clients))
    selection = SELECTIONS.get(name)()
    now = known(
        data.draw(st.integers(0, 9)),
        wanted=wanted,
        samples=np.array(samples),
        state={n: np.asarray(v) for n, v in selection.init(clients).items()},
        **away(*gone),
    )
    found: Sequence[int] = selection.select(now)
    assert len({*found}) == len(found) and {*found} <= {*range(clients)} - gone
    if name != "poisson":
        assert len(found) == min(wanted, clients - len(gone))
