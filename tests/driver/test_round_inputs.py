"""Inputs of a round: its cohort, the server's generators and further cohorts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from raysim import Round, ServerState
from raysim.api.selection import History
from raysim.driver.rounds.method_rounds import round_inputs
from raysim.driver.rounds.selecting import RoundSelection, sampling_of
from raysim.storage.client_states import NEVER
from raysim.storage.run_state import RunState
from tests.tasks import make_settings

CLIENTS = 10
SIZES = np.arange(1, 1 + CLIENTS)


def inputs(seed: int = 0, number: int = 3, losses: Any = None) -> Round:
    history = History.empty(CLIENTS)
    if losses is not None:
        history.losses[:] = losses
    overrides = {"seed": seed, "clients": CLIENTS, "fraction": 0.3, "local.lr_decay": 0.5}
    run = make_settings(Path("run"), **overrides, **{"local.epochs": 2})
    state = ServerState({"model": {"w": torch.zeros(2)}}, {"stage": 2})
    checkpoint = RunState(number, state, history, np.full((CLIENTS, len(NEVER)), NEVER))
    cohort = RoundSelection.of(run, sampling_of(run, checkpoint, SIZES, None)).cohort
    return round_inputs(run, nn.Linear(1, 1), checkpoint, sizes=SIZES, note=print, cohort=cohort)


keys = st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(["noise", "mask"]))


@settings(max_examples=40)
@example((0, 0, "noise"), (0, 0, "mask"), [], False)
@given(keys, keys, st.lists(st.integers(0, 2), max_size=2), st.booleans())
def test_draws_depend_on_seed_round_and_purpose_alone(first, second, others, seen):
    """Neither on earlier draws nor on what clients lost."""
    (seed, number, purpose), (other_seed, other_number, other_purpose) = first, second
    one = inputs(seed, number)
    another = inputs(other_seed, other_number, np.ones(CLIENTS) if seen else None)
    another.generator("other")
    for key in others:
        another.sample(key)
    draws = [
        torch.rand(4, generator=now.generator(name))
        for now, name in ((one, purpose), (another, other_purpose))
    ]
    assert torch.equal(*draws) == (first == second)
    if first[:2] == second[:2]:
        assert (one.cohort, one.sample(1)) == (another.cohort, another.sample(1))


def test_cohorts_differ_by_seed_and_round_and_further_ones_by_their_keys():
    rounds = [inputs(0, 3), inputs(0, 4), inputs(1, 3)]
    assert len({now.cohort for now in rounds}) == 3
    drawn = {now.sample(*key) for now in rounds for key in ((), (0,), (1,), (0, 1))}
    assert len(drawn) == 12
    assert all(len({*cohort}) == 3 and [*cohort] == sorted(cohort) for cohort in drawn)
    assert inputs(0, 3).sample(1) not in {inputs(0, 3).cohort}


def test_a_generator_starts_anew_whenever_it_is_asked_for():
    now = inputs()
    first, again = (torch.rand(4, generator=now.generator("noise")) for _ in range(2))
    assert torch.equal(first, again)


def test_the_learning_rate_is_that_of_the_round():
    now = inputs(number=3)
    assert (now.lr, now.lr_at(5)) == (0.1 * 0.5**3, 0.1 * 0.5**5)
    assert (now.number, now.clients, now.epochs) == (3, CLIENTS, 2)
