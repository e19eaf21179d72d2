"""Inputs of a round: a method's cohort, the server's generators and further cohorts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import raysim
from raysim import Round, RunError, Sampling, ServerState
from raysim.driver.round_inputs import round_inputs
from raysim.methods.fedavg import FedAvg
from raysim.storage.checkpoints import Checkpoint
from raysim.storage.client_states import NEVER
from raysim.testing.contract import StopAfter
from tests.tasks import make_settings, make_task, model_of

CLIENTS = 10
SIZES = np.arange(1, 1 + CLIENTS)


class Neediest(FedAvg):
    """FedAvg that prefers clients with the largest last loss, unseen ones first."""

    def cohort(self, sampling: Sampling, state: ServerState) -> Sequence[int]:
        losses = np.nan_to_num(sampling.losses, nan=np.inf)
        return np.argsort(-losses, kind="stable")[: sampling.size].tolist()


def inputs(seed: int = 0, number: int = 3, losses: Any = None, **method: Any) -> Round:
    losses = np.full(CLIENTS, np.nan) if losses is None else losses
    overrides = {"seed": seed, "clients": CLIENTS, "fraction": 0.3, "local.lr_decay": 0.5}
    run = make_settings(Path("run"), **overrides)
    run = run.model_copy(update=method)
    state = ServerState({"model": {"w": torch.zeros(2)}}, {"stage": 2})
    checkpoint = Checkpoint(number, state, losses, np.full((CLIENTS, len(NEVER)), NEVER))
    return round_inputs(run, nn.Linear(1, 1), checkpoint, sizes=SIZES, note=print)


def selected(choice: Callable[[Sampling, ServerState], Sequence[int]], **options: Any) -> Round:
    class Selected(FedAvg):
        """FedAvg whose cohort a test chooses."""

        def cohort(self, sampling: Sampling, state: ServerState) -> Sequence[int]:
            return choice(sampling, state)

    return inputs(method=Selected(), **options)


def test_a_method_sees_round_size_and_state():
    seen: list[Any] = []

    def choice(sampling: Sampling, state: ServerState) -> list[int]:
        seen.append((sampling.round_number, sampling.clients, sampling.size, state.info["stage"]))
        return [7, 2]

    assert selected(choice, number=4).cohort == (2, 7)
    assert seen == [(4, CLIENTS, 3, 2)]


def test_a_method_sees_the_losses_and_cannot_write_them():
    losses = np.array([np.nan] * 8 + [0.5, 0.25])

    def choice(sampling: Sampling, state: ServerState) -> list[int]:
        with pytest.raises(ValueError, match="read-only"):
            sampling.losses[0] = 0.0
        return np.flatnonzero(sampling.losses > 0).tolist()

    assert selected(choice, losses=losses).cohort == (8, 9)
    assert losses.flags.writeable


@pytest.mark.parametrize("bad", [[], [1, 2, 1], [0, CLIENTS], [-1, 3]])
def test_a_bad_cohort_stops_in_one_line(bad):
    with pytest.raises(RunError) as caught:
        selected(lambda sampling, state: bad)
    name, _, rest = str(caught.value).partition(": ")
    assert name.startswith("method.name=") and name.endswith("Selected")
    assert rest == (
        f"the cohort of round 4 must be distinct clients from 0 to 9, at least one; it is {bad}"
    )


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


NEEDIEST = {"method.name": "tests.driver.test_round_inputs:Neediest", "fraction": 0.5}


def cohorts(run: Path) -> list[list[int]]:
    rows = pq.read_table(run / "clients.parquet").to_pylist()
    return [[row["client"] for row in rows if row["round"] == n] for n in range(1, 6)]


def test_selection_by_losses_resumes_with_the_same_bits(tmp_path):
    task = make_task((1, 3, 600, 17, 80, 250))  # the largest is soon the least needy
    raysim.run(make_settings(tmp_path / "whole", **NEEDIEST), task)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "cut", **NEEDIEST), task, StopAfter(4))
    shutil.rmtree(tmp_path / "cut/checkpoints/round_000004")  # as if killed before it was written
    raysim.resume(tmp_path / "cut", task)
    found = cohorts(tmp_path / "whole")
    assert found[:2] == [[0, 1, 2], [3, 4, 5]] and len({*map(tuple, found)}) > 2
    assert cohorts(tmp_path / "cut") == found
    assert model_of(tmp_path / "cut") == model_of(tmp_path / "whole")
