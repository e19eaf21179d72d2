"""State versions and figures of a round's passes, on a fake executor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim import Upload
from raysim.driver.rounds.passes import RoundRunner
from raysim.execution.messages import PassMessage
from raysim.storage.client_states import NEVER, StateVersion
from tests.driver.test_passes import (
    CLIENTS,
    EACH,
    ROUND,
    SIZES,
    FakeExecutor,
    context_of,
    plain,
    round_of,
    work_of,
)

OWN = {"own": {"x": torch.ones(1)}}
ERRORS = Path("errors.log")  # no client fails here
COMMITTED = StateVersion(1, 2, digest=7)


def writing(wrote: dict[tuple[int, int], tuple[bool, bool]]) -> FakeExecutor:
    """Return an executor whose clients write states: client and round state by pass and client."""

    def upload(client: int, message: PassMessage) -> Upload:
        state, in_round = wrote.get((message.pass_number, client), (False, False))
        sums = plain(client, message).sums
        return Upload(sums, state=OWN if state else {}, round_state=OWN if in_round else {})

    return FakeExecutor(upload)


def runner_of(executor: FakeExecutor) -> RoundRunner:
    """Return the runner of a round before which client 2 alone has committed state."""
    latest = np.full((len(SIZES), 3), NEVER)
    latest[2] = (COMMITTED.round_number, COMMITTED.pass_number, COMMITTED.digest)
    return round_of(context_of(executor, ERRORS), latest)


def test_a_pass_reads_what_the_pass_before_it_wrote():
    wrote = {(0, 0): (True, False), (0, 2): (True, True), (0, 3): (False, True)}
    executor = writing(wrote | {(1, 2): (True, False)})
    runner = runner_of(executor)
    for clients in ((0, 2, 3), (0, 2, 3, 4), (2,)):
        runner.run(work_of(clients))
    first, in_round = StateVersion(ROUND, 0), StateVersion(ROUND, 0, True)
    found = [message.versions for message, _ in executor.calls]
    assert found == [
        {2: (COMMITTED,)},
        {0: (first,), 2: (first, in_round), 3: (in_round,)},
        {2: (StateVersion(ROUND, 1), in_round)},
    ]
    assert runner.obsolete == [(2, first)]
    runner.finish()
    assert runner.obsolete == [(2, first), (2, in_round), (3, in_round)]
    assert runner.written == {0: first, 2: StateVersion(ROUND, 1)}
    assert runner.latest[2].tolist() == [*COMMITTED[:2], COMMITTED.digest]
    assert set(runner.latest[[0, 1, 3, 4, 5]].ravel().tolist()) == {*NEVER}


writes = st.dictionaries(
    st.tuples(st.integers(0, 2), st.sampled_from(CLIENTS)), st.tuples(st.booleans(), st.booleans())
)


@settings(max_examples=40)
@given(writes)
def test_obsolete_is_all_that_was_written_but_the_last_client_states(wrote):
    runner = runner_of(writing(wrote))
    for _ in range(3):
        runner.run(work_of())
    runner.finish()
    versions = [
        (client, StateVersion(ROUND, number, in_round))
        for (number, client), kinds in wrote.items()
        for in_round, kind in zip((False, True), kinds, strict=True)
        if kind
    ]
    kept = {client: version for client, version in sorted(versions) if not version.in_round}
    assert runner.written == kept
    assert sorted(runner.obsolete) == sorted({*versions} - {*kept.items()})


def test_the_message_has_the_oldest_round_that_a_checkpoint_needs():
    runner = runner_of(executor := FakeExecutor())
    runner.needed_from = 3
    runner.run(work_of())
    assert executor.calls[0][0].needed_from == 3


def test_a_label_has_columns_of_its_own():
    runner = runner_of(FakeExecutor())
    runner.run(work_of((0, 2), label="prepass"))
    assert runner.log.losses(()) == {}
    runner.run(work_of((1, 2)))
    runner.run(work_of((2, 4)))
    figures = runner.log.figures()
    own = {name: value for name, value in figures.items() if not name.startswith("prepass_")}
    losses = np.array([1, 2, 2, 4]) / 3
    assert own == pytest.approx(
        {
            "train_loss": np.average(losses, weights=SIZES[[1, 2, 2, 4]]),
            "objective": np.average(losses * 1.5, weights=SIZES[[1, 2, 2, 4]]),
            "bytes_up": 6 * EACH,  # of all passes, the labelled one included
            "bytes_down": 6 * 8,
            "clients": 3,
        }
    )
    assert {n: figures[f"prepass_{n}"] for n in own} == pytest.approx(
        {
            "train_loss": np.average([0, 2 / 3], weights=SIZES[[0, 2]]),
            "objective": np.average([0, 1], weights=SIZES[[0, 2]]),
            "bytes_up": 2 * EACH,
            "bytes_down": 2 * 8,
            "clients": 2,
        }
    )
    assert [columns["pass"].tolist() for columns in runner.log.columns] == [[0, 0], [1, 1], [2, 2]]
    assert runner.log.losses(()) == {1: 1 / 3, 2: 2 / 3, 4: 4 / 3}


def test_a_pass_without_steps_costs_its_samples_and_has_no_losses():
    runner = runner_of(executor := FakeExecutor())
    runner.run(work_of(epochs=0))
    assert executor.calls[0][1] == {(client,): SIZES[client] for client in CLIENTS}
    figures = runner.log.figures()
    assert (figures["train_loss"], figures["objective"], figures["clients"]) == (None, None, 0)


def test_bytes_down_count_personal_groups_and_what_a_deployment_sends():
    personal = {2: {"own": {"x": torch.zeros(5)}}}
    for bytes_down, expected in ((None, 3 * 8 + 20), (lambda client: 10 * client, 60 + 20)):
        runner = runner_of(executor := FakeExecutor())
        runner.run(work_of((0, 2, 4), personal=personal, bytes_down=bytes_down))
        assert runner.log.figures()["bytes_down"] == expected
        message, _ = executor.calls[0]
        assert set(message.personal) == {2}
        assert message.pass_.clients == () and not message.pass_.broadcast
