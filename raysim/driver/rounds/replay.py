"""A client of a round trained again, to the same bits, in this process and outside the run.

The round begins from the checkpoint before it; rounds between are run again. In the round, the
client's stack trains first, and the round ends when the client has trained in its last pass. The
run directory is only read: states and updates are written to a temporary folder.
"""

from __future__ import annotations

import copy
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import nn

from raysim.api.components import called
from raysim.api.rules import Reduced, View
from raysim.config import Settings
from raysim.driver.listeners.listener import Listener
from raysim.driver.rounds.method_rounds import RunPass
from raysim.driver.rounds.run import OpenRound, Run
from raysim.driver.start.context import CheckedRun, RunContext
from raysim.driver.start.identity import INITIAL_MODEL, differing_parts
from raysim.driver.start.start import check_run
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.errors import RunError, SettingsError
from raysim.execution.base import Call, InlineExecutor, Item, unnoticed
from raysim.execution.client_jobs import ClientJobs
from raysim.execution.messages import FailedItem, Failure, PassMessage, WorkerResult
from raysim.execution.process import own_modes, threads_of
from raysim.execution.worker import WorkerSpec
from raysim.federation.federation import Federation
from raysim.federation.opened import OpenedSamples
from raysim.numbers.tensors import CPU, Tensors
from raysim.storage.checkpoints import Checkpoint, Checkpoints
from raysim.storage.environment import unknown_environment
from raysim.storage.rows.parted import reading
from raysim.storage.run_directory import RunDirectory
from raysim.storage.run_state import RunState
from raysim.storage.trace import Stopwatch
from raysim.training.network import Network, score
from raysim.user_input import parse_json

LOSS_BEFORE, LOSS_AFTER, NORM = "loss_before", "loss_after", "update_norm"
"""Figures of a replay: losses on the samples that it trained on, and the length of its update."""
Row = dict[str, float]


@dataclass(frozen=True)
class Replay:
    """A client of a round, trained again.

    Attributes:
        client: The client.
        round_number: The round, counted from 1.
        rows: For each pass that trained it, its figures: those of `clients.parquet`, and
            `loss_before`, `loss_after` and `update_norm`.
        start: The tensors that its network had at the start of its last pass.
        model: The tensors that it had at the end.
        agrees: For each pass, the columns of `clients.parquet` that have the same values.
        differs: For each pass, the columns that have others, with the stored values.
    """

    client: int
    round_number: int
    rows: Sequence[Row]
    start: Tensors
    model: Tensors
    agrees: Sequence[Sequence[str]] = ()
    differs: Sequence[Row] = ()

    @property
    def update(self) -> dict[str, torch.Tensor]:
        """The changes of its network's tensors in its last pass."""
        return {name: tensor - self.start[name] for name, tensor in self.model.items()}


class _EndError(BaseException):
    """End of a round in which the client has trained; no `except Exception` stops it."""


@dataclass
class _Trained:
    """Captured training of the client.

    Attributes:
        client: The client.
        number: The round, counted from 0.
        last_pass: Number of the last pass that trains it; infinite if it is not known.
        models: For each pass, its tensors at the start and at the end.
        records: For each pass, the numbers of its row.
        messages: For each pass, what was sent to train it.
        failure: Its failure, if it failed.
    """

    client: int
    number: int
    last_pass: float
    models: list[tuple[Tensors, Tensors]] = field(default_factory=list)
    records: list[Row] = field(default_factory=list)
    messages: list[PassMessage] = field(default_factory=list)
    failure: Failure | None = None

    def capture(self, view: View) -> None:
        """Copy the client's tensors."""
        if view.client == self.client:
            start, end = (
                {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
                for tensors in (view.start, view.params)
            )
            self.models.append(({name: start[name] for name in end}, end))

    def take_in(self, message: PassMessage, result: WorkerResult) -> None:
        """Take in the result of the client's stack.

        Raises:
            _EndError: the client failed, or this was its last pass.
        """
        mine = [failure for failure in result.failures if failure.client == self.client]
        self.failure = next(iter(mine), None)
        records = (record for total in result.sums.values() for record in total.records)
        trained = {**next((r for r in records if r["client"] == self.client), {})}
        self.messages.append(message)
        self.records.append({**trained, "pass": message.pass_number})
        if self.failure or message.pass_number >= self.last_pass:
            raise _EndError


class _ClientFirst(InlineExecutor):
    """Executor that trains the client's stack first; `breakpoint()` stops in it alone."""

    def __init__(self, spec: WorkerSpec, network: nn.Module, trained: _Trained) -> None:
        super().__init__(spec, network)
        self._trained = trained

    def submit(
        self,
        call: Call,
        message: Any,
        costs: Mapping[Item, float],
        failed_at: Mapping[Item, str] | None = None,
        due: Mapping[Item, float] | None = None,
    ) -> None:
        """Queue items, those of the client as a message of their own before the others."""
        for of_client in (True, False):
            items = {item: c for item, c in costs.items() if self._is(call, item) == of_client}
            if items:
                super().submit(call, message, items)

    def _is(self, call: Call, item: Item) -> bool:
        return call == "train" and self._trained.client in item

    def results(
        self, call: Call, on_done: Callable[[int], None] = unnoticed
    ) -> Iterator[WorkerResult | FailedItem]:
        """Run the items, and yield the result of each message.

        Raises:
            _EndError: the client has trained in its last pass, or failed.
        """
        results = super().results(call, on_done)
        while self._waiting[call]:
            message, items = self._waiting[call][0]
            watched = self._is(call, items[0]) and self._is_of_round(message)
            if watched:
                result = next(results)
                self._trained.take_in(message, result)  # type: ignore[arg-type]
            else:
                with no_breakpoints():
                    result = next(results)
            yield result

    def _is_of_round(self, message: PassMessage) -> bool:
        return message.round_number == self._trained.number and not message.root


@contextmanager
def no_breakpoints() -> Iterator[None]:
    """Let `breakpoint()` do nothing in the body."""
    before = sys.breakpointhook
    sys.breakpointhook = lambda *args, **more: None
    try:
        yield
    finally:
        sys.breakpointhook = before


class _ReplayedRun(Run):
    """Run whose round is watched for a client's training."""

    def __init__(self, context: RunContext, trained: _Trained) -> None:
        super().__init__(context)
        self._trained = trained

    def _begin(self, before: RunState) -> OpenRound:
        begun = super()._begin(before)
        if before.number != self._trained.number:
            return begun
        return replace(begun, run=partial(self._watched, begun.run))

    def _watched(self, run: RunPass, dispatch: Dispatch) -> Reduced:
        return run(dispatch.with_step(UploadStep(before=self._trained.capture)))

    def replay(self, before: RunState) -> None:
        """Run the rounds from a state to the client's training."""
        if before.stack_size is None:
            self._decide_stack_size()
            before = replace(before, stack_size=self.commits.committed.stack_size)
        if before.number < self._trained.number:
            origin = f"the checkpoint of round {before.number}" if before.number else "the start"
            first, last = before.number + 1, self._trained.number
            rounds = f"round {last} runs" if first == last else f"rounds {first} to {last} run"
            self.context.listener.note(f"{rounds} again, from {origin}")
        while before.number < self._trained.number:
            with no_breakpoints():
                before, _, log, _ = self.done_round(before)
            before.history.add(before.number, log.losses(self.settings.participants.listed))
        try:
            self.done_round(before)
        except _EndError:
            pass
        except RunError:
            if not self._trained.models:
                raise
            self.context.listener.note("another client fails in the rest of the round")


def replay(
    run_dir: RunDirectory,
    settings: Settings,
    federation: Federation,
    round_number: int,
    client: int,
    *,
    listener: Listener,
    force: bool,
) -> Replay:
    """Train a client again as in a round of a run, without writing to the run directory.

    Args:
        run_dir: The run directory.
        settings: The run's settings.
        federation: The run's samples, client indices and network.
        round_number: The round, counted from 1.
        client: The client.
        listener: Told what is run.
        force: Whether to go on with other data or code than the run's.

    Raises:
        SettingsError: the run has no such round, or its rounds overlap.
        RunError: the client did not train in the round, or it fails; or data or code differ.
    """
    checkpoints = Checkpoints(run_dir.checkpoints)
    _check_round(run_dir, settings, round_number)
    engine = settings.engine.model_copy(update={"backend": "inline"})
    changes = {"engine": engine, "trace": False, "keep_clients": False}
    stored = _stored_rows(run_dir, round_number, client)
    settings = settings.model_copy(update=changes)
    checked = check_run(settings, federation, run_dir, listener.note)
    _check_identity(run_dir, checked, listener, force=force)
    before = _state_before(checked, checkpoints, round_number, listener)
    last_pass = max((row["pass"] for row in stored), default=math.inf)
    trained = _Trained(client, round_number - 1, last_pass)
    with own_modes(), _opened(checked, before, trained, listener) as run:
        _check_environment(run.context, checkpoints)
        run.replay(before)
    name = checked.federation.named(client)
    if trained.failure:
        for line in trained.failure.trace.splitlines():
            listener.note(line)
        raise RunError(f"client {name}: failed in round {round_number}: {trained.failure.cause}")
    if not trained.models:
        raise RunError(f"client {name}: did not train in round {round_number}")
    return _replayed(trained, checked, stored)


def _check_round(run_dir: RunDirectory, settings: Settings, number: int) -> None:
    """Check that a run has a round, and rounds that can be replayed.

    Raises:
        SettingsError: it has not.
    """
    if settings.asynchrony is not None:
        raise SettingsError(
            f"{called(settings.method)}: its rounds overlap, so a client trains in no single round;"
            " replay takes methods whose rounds do not"
        )
    last = settings.rounds
    if run_dir.is_finished_by(settings):
        last = parse_json(run_dir.summary.read_text("utf-8"))["rounds"]
    if not 1 <= number <= last:
        raise SettingsError(f"--round={number}: must be from 1 to {last}")


def _check_identity(
    run_dir: RunDirectory, checked: CheckedRun, listener: Listener, *, force: bool
) -> None:
    """Check that data and code are the run's.

    Raises:
        RunError: they are others, and this is not forced.
    """
    sealed = Checkpoints(run_dir.checkpoints).identity()
    if not sealed:
        listener.note(
            f"{run_dir.path}: has no checkpoint, so data and code are not compared with the run's"
        )
    identity = {name: value for name, value in checked.identity.items() if name != INITIAL_MODEL}
    if parts := differing_parts(sealed, identity):
        told = f"{run_dir.path}: is of other data or code: {', '.join(parts)}"
        if not force:
            raise RunError(f"{told}; restore that, or type --force to replay with it")
        listener.note(f"forced: {told}")


def _check_environment(context: RunContext, checkpoints: Checkpoints) -> None:
    """Tell the user if the run was made with other versions or on another machine."""
    here = [actor["environment"] for actor in context.executor.describe()["actors"]]
    known = checkpoints.identity().get("environments", [])
    if other := unknown_environment(here, known):
        context.listener.note(f"last bits may differ from the run's: {other}")


def _state_before(
    checked: CheckedRun, checkpoints: Checkpoints, number: int, listener: Listener
) -> RunState:
    """Return the newest state of a checkpoint before a round, or else the initial state."""

    def check(found: Checkpoint) -> None:
        checked.states.check(found.run.versions)

    found = checkpoints.before(number, len(checked.sizes), listener.note, check)
    if found is not None:
        return found.run
    # The run has decided it on its own machine.
    return replace(checked.initial, stack_size=checkpoints.words().get("stack_size"))


@contextmanager
def _opened(
    checked: CheckedRun, before: RunState, trained: _Trained, listener: Listener
) -> Iterator[_ReplayedRun]:
    """Yield a run in a temporary folder, which reads the client states of a state."""
    with (
        TemporaryDirectory(prefix="raysim-") as folder,
        threads_of(checked.settings.engine),
    ):
        run_dir = RunDirectory(Path(folder))
        states = checked.states.linked(run_dir.states, before.versions)
        parts: dict[str, Any] = {**vars(checked), "states": states, "initial": before}
        spec = CheckedRun(**parts).spec
        network = copy.deepcopy(checked.network)
        with closing(_ClientFirst(spec, network, trained)) as executor:
            parts |= {"watch": Stopwatch(False), "listener": listener}
            context = RunContext(**parts, run_dir=run_dir, executor=executor)
            if context.clock:
                context.clock.costs.counter.restore(before.costs)
            yield _ReplayedRun(context, trained)


def _stored_rows(run_dir: RunDirectory, number: int, client: int) -> list[Row]:
    """Return the rows of a client in a round, by pass; empty if the run has not recorded it.

    Raises:
        RunError: the table is damaged, or has the round without the client.
    """
    if not os.path.lexists(run_dir.clients):
        return []
    with reading(run_dir.clients):
        parts = sorted(run_dir.clients.glob("part-*.parquet"))
        tables = [pq.read_table(path, filters=[("round", "==", number)]) for path in parts]
    rows: list[Row] = [row for table in tables for row in table.to_pylist()]
    if rows and client not in (clients := sorted({row["client"] for row in rows})):
        others = ", ".join(map(str, clients[:20])) + ", ..." * (len(clients) > 20)
        raise RunError(f"client {client}: did not train in round {number}; these did: {others}")
    return sorted((row for row in rows if row["client"] == client), key=lambda row: row["pass"])


def _replayed(trained: _Trained, checked: CheckedRun, stored: Sequence[Row]) -> Replay:
    opened = OpenedSamples(checked.federation, CPU)
    jobs = ClientJobs(checked.settings, checked.federation, checked.spec.states, opened)
    network = Network(copy.deepcopy(checked.network))
    network.eval()

    def loss(message: PassMessage, tensors: Tensors) -> float:
        samples = jobs.of_client(message, trained.client)
        samples = samples._replace(scoring=checked.federation.scoring)
        network.load(tensors)
        with torch.no_grad():
            return score(network, samples)[0][0] / samples.scoring.total_weight(samples.y)

    rows: list[Row] = []
    of_passes = zip(trained.models, trained.records, trained.messages, strict=True)
    for (start, end), record, message in of_passes:
        moved = (end[name] - tensor for name, tensor in start.items() if tensor.is_floating_point())
        norm = math.sqrt(sum(float(change.double().square().sum()) for change in moved))
        losses = {LOSS_BEFORE: loss(message, start), LOSS_AFTER: loss(message, end)}
        rows.append({**record, **losses, NORM: norm})
    by_pass = {row["pass"]: row for row in stored}
    compared = [_compared(row, by_pass.get(row["pass"], {})) for row in trained.records]
    return Replay(
        *(trained.client, trained.number + 1, rows, *trained.models[-1]),
        [same for same, _ in compared],
        [other for _, other in compared],
    )


def _compared(row: Row, stored: Row) -> tuple[list[str], Row]:
    """Return the columns with the same values as the stored row, and those with others."""
    names = [n for n in row if stored.get(n) is not None and n not in ("client", "pass", "seconds")]
    other = {n: stored[n] for n in names if repr(float(row[n])) != repr(float(stored[n]))}
    return [name for name in names if name not in other], other
