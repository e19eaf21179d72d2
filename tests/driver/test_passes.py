"""Passes of a round on a fake executor: retries, drops, weights, state versions, figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import raysim
from raysim import RunError, ServerState, Upload
from raysim.api.selection import History
from raysim.driver.rounds.local_values import RoundValues
from raysim.driver.rounds.passes import PassContext, RoundRunner
from raysim.driver.rounds.selecting import sampling_of
from raysim.driver.uploads.dispatch import Dispatch
from raysim.execution.base import Item
from raysim.execution.messages import FailedItem, Failure, PassMessage, WorkerResult
from raysim.execution.partial_sum import PartialSum
from raysim.storage.client_states import NEVER
from raysim.storage.run_state import RunState
from raysim.storage.trace import Stopwatch
from raysim.storage.updates import UpdateFiles
from tests.tasks import Notes, make_settings

SIZES = np.array([5, 3, 8, 1, 6, 2])  # in groups of three: (2, 4, 0), (1, 5, 3)
CLIENTS = tuple(range(len(SIZES)))
ROUND = 4
EACH = 4 * 3  # bytes of an upload of `plain`


def plain(client: int, message: PassMessage) -> Upload:
    """Return an upload of one tensor and one scalar."""
    model = {"w": torch.tensor([client + 0.1, -client / 3])}
    return Upload(sums={"model": model}, scalars={"score": client / 7})


def with_states(client: int, message: PassMessage) -> Upload:
    """Return an upload with everything that a client can send or write."""
    own = {"x": torch.tensor([client / 9])}
    states = {"state": {"own": own}, "round_state": {"staged": own}}
    sent = {"sums": plain(client, message).sums, "rows": {"row": own}}
    return Upload(**sent, **states, scalars={"score": client / 7}, metrics={"seen": client})


@dataclass
class FakeExecutor:
    """Executor that trains nobody.

    Attributes:
        upload: Returns the upload of a client.
        failing: How often a client still fails.
        dies: Whether an item's worker dies every time.
        split: Divides items among workers.
        notes: Lines of every worker.
        calls: Messages and costs so far.
        failed_at: For each call, the items that failed before, and the worker.
    """

    upload: Callable[[int, PassMessage], Upload] = plain
    failing: dict[int, int] = field(default_factory=dict)
    dies: Callable[[PassMessage, Item], bool] = lambda message, item: False
    split: Callable[[list[Item]], list[list[Item]]] = lambda items: [items]
    notes: tuple[str, ...] = ()
    calls: list[tuple[PassMessage, dict[Item, float]]] = field(default_factory=list)
    failed_at: list[dict[Item, str]] = field(default_factory=list)
    _given: deque[tuple[PassMessage, int, list[Item]]] = field(default_factory=deque)
    _results: deque[WorkerResult | FailedItem] = field(default_factory=deque)
    _done: int = 0

    def submit(
        self,
        call: str,
        message: Any,
        costs: Mapping[Item, float],
        failed_at: Mapping[Item, str],
        due: Mapping[Item, float] | None = None,
    ) -> None:
        assert call == "train"
        self.calls.append((message, dict(costs)))
        self.failed_at.append(dict(failed_at))
        self._given += [(message, *each) for each in enumerate(self.split([*costs]))]
        self._done = 0

    def results(
        self, call: str, on_done: Callable[[int], None]
    ) -> Iterator[WorkerResult | FailedItem]:
        while self._given or self._results:
            while self._results:
                given = self._results.popleft()
                yield given
                # A driver has read the next one before it lets go of this one.
                assert isinstance(given, FailedItem) or not given.sums
            if self._given:
                self._work(*self._given.popleft(), on_done)

    def _work(
        self, message: PassMessage, number: int, items: list[Item], on_done: Callable[[int], None]
    ) -> None:
        result = WorkerResult(f"worker {number}", notes=[*self.notes])
        for item in items:
            if self.dies(message, item):
                self._results.append(FailedItem(item, "its worker died 3 times"))
            else:
                self._train(message, item, result)
            self._done += len(item)
            on_done(self._done)
        self._results.append(result)

    def _train(self, message: PassMessage, group: Item, result: WorkerResult) -> None:
        for client in group:
            if client in message.arrived:
                continue
            if self.failing.get(client):
                self.failing[client] -= 1
                trace = f"Traceback of {client}"
                result.failures.append(Failure(client, "its loss is nan", trace, group))
                continue
            upload = self.upload(client, message)
            total = result.sums.setdefault(message.round_number, PartialSum())
            weight = 1 if message.uniform else int(SIZES[client])
            record = {"client": client, "samples": int(SIZES[client]), "seconds": 0.0}
            steps = message.pass_.epochs_of(client) * int(SIZES[client])
            record |= {"steps": steps, "train_loss": client / 3, "objective": client / 2}
            total.add(record, total.check(upload)(), weight, message.total_weight)

    def describe(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


def context_of(executor: FakeExecutor, errors: Path, **options: Any) -> PassContext:
    stack_size, listener = options.pop("stack_size", 1), options.pop("listener", raysim.Listener())
    settings = make_settings(errors.parent, clients=len(SIZES), **options)
    return PassContext(
        settings=settings,
        sizes=SIZES,
        executor=executor,
        watch=Stopwatch(False),
        listener=listener,
        errors=errors,
        updates=UpdateFiles(errors.with_name("updates")),
        drop_advice="type: raysim resume runs/mine on_client_error=drop",
        stack_size=stack_size,
    )


def round_of(context: PassContext, latest: Any = None, number: int = ROUND) -> RoundRunner:
    latest = np.full((len(SIZES), 3), NEVER) if latest is None else latest
    before = RunState(number, ServerState({}), History.empty(len(SIZES)), latest)
    sampling = sampling_of(context.settings, before, SIZES, None)
    values = RoundValues.of(context.settings, sampling, before)
    return RoundRunner(context, number, before.state, latest, number, values)


def work_of(clients: Any = CLIENTS, **others: Any) -> Dispatch:
    own = {"epochs": 1, "lr": 0.1, **others}
    return Dispatch(clients, {"model": {"w": torch.zeros(2)}}, **own)


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file for tracebacks, for tests that do not read it."""
    return tmp_path_factory.mktemp("passes") / "errors.log"


def outcome(executor: FakeExecutor, errors: Path, **options: Any) -> Any:
    """Return all that two passes of a round leave, in an order of its own."""
    runner = round_of(context_of(executor, errors, **options))
    results = []
    for clients in (CLIENTS, CLIENTS[:4]):
        reduced = runner.run(work_of(clients))
        means = {n: t.numpy().tobytes() for n, t in reduced.means["model"].items()}
        rows = {client: float(reduced.rows[client]["row"]["x"]) for client in sorted(reduced.rows)}
        scalars = {name: values.tolist() for name, values in reduced.scalars.items()}
        results.append((reduced.clients, means, rows, scalars))
    runner.finish()
    columns = [{n: v.tolist() for n, v in each.items()} for each in runner.log.columns]
    return results, columns, runner.log.figures(), runner.written, sorted(runner.obsolete)


@pytest.fixture(scope="module")
def undisturbed(errors):
    """Return what two passes leave where no client fails."""
    return outcome(FakeExecutor(with_states), errors)


@settings(max_examples=30)
@given(st.data(), st.integers(1, 3))
def test_order_split_and_failures_once_change_nothing(errors, undisturbed, data, stack_size):
    def split(items: list[Item]) -> list[list[Item]]:
        items = data.draw(st.permutations(items))
        cut = data.draw(st.integers(0, len(items)))
        return [items[:cut], items[cut:]]

    failing = dict.fromkeys(data.draw(st.sets(st.sampled_from(CLIENTS))), 1)
    executor = FakeExecutor(with_states, failing, split=split)
    assert outcome(executor, errors, stack_size=stack_size) == undisturbed


def test_a_client_that_fails_once_is_retried_with_its_group_and_counted_once(errors):
    executor = FakeExecutor(failing={4: 1})
    runner = round_of(context_of(executor, errors, stack_size=3))
    assert runner.run(work_of(epochs=2)).clients == CLIENTS
    (first, all_costs), (second, costs) = executor.calls
    assert all_costs == {(2, 4, 0): 2 * 19, (1, 5, 3): 2 * 6} and costs == {(2, 4, 0): 2 * 19}
    assert not first.retry and not first.arrived
    assert second.retry and second.arrived == {0, 1, 2, 3, 5}
    assert executor.failed_at == [{}, {(2, 4, 0): "worker 0"}]
    assert runner.log.columns[0]["client"].tolist() == [*CLIENTS]
    assert runner.log.figures()["bytes_up"] == len(CLIENTS) * EACH
    assert not runner.log.dropped


def test_a_client_that_fails_twice_stops_the_run_in_one_line(tmp_path):
    path = tmp_path / "errors.log"
    runner = round_of(context_of(FakeExecutor(failing={4: 2}), path))
    with pytest.raises(RunError) as caught:
        runner.run(work_of())
    assert str(caught.value) == (
        f"client 4: failed twice in round {ROUND + 1}: its loss is nan (traceback in {path}; to"
        " continue without it, type: raysim resume runs/mine on_client_error=drop)"
    )
    assert path.read_text() == f"round {ROUND + 1}, client 4\nTraceback of 4\n" * 2


@pytest.mark.parametrize("stack_size", [1, 3])
def test_a_client_that_fails_twice_is_dropped_and_counted(errors, stack_size):
    executor = FakeExecutor(failing={4: 2, 0: 1})
    options = {"on_client_error": "drop", "stack_size": stack_size}
    runner = round_of(context_of(executor, errors, **options))
    reduced = runner.run(work_of())
    left = [client for client in CLIENTS if client != 4]
    assert reduced.clients == tuple(left) and len(reduced.scalars["score"]) == 5
    assert [failure.client for failure in runner.log.dropped] == [4]
    # Its actor may have written a state before it died: nothing may find it on resuming.
    orphans = [(client, version[:2]) for client, version in runner.obsolete if client == 4]
    assert orphans == [(4, (ROUND, 0))] * 2
    figures = runner.log.figures()
    assert (figures["clients"], figures["clients_dropped"]) == (5, 1)
    assert figures["bytes_up"] == 5 * EACH
    assert figures["bytes_down"] == 6 * 8  # it was sent the model
    mean = np.average([client + 0.1 for client in left], weights=SIZES[left])
    assert float(reduced.means["model"]["w"][0]) == pytest.approx(mean, rel=1e-6)


def test_a_group_whose_worker_died_is_not_retried(errors):
    for on_error in ("stop", "drop"):
        executor = FakeExecutor(dies=lambda message, item: 4 in item)
        options = {"on_client_error": on_error, "stack_size": 3}
        runner = round_of(context_of(executor, errors, **options))
        if on_error == "stop":
            with pytest.raises(RunError, match=r"^client 2: failed in round 5: its worker died"):
                runner.run(work_of())
        else:
            assert runner.run(work_of()).clients == (1, 3, 5)
            assert [failure.client for failure in runner.log.dropped] == [0, 2, 4]
        assert len(executor.calls) == 1


def test_where_a_pass_stops_nothing_is_left_for_the_next_one(errors):
    """A run goes on after a pass of an analysis that fails."""
    executor = FakeExecutor(
        dies=lambda message, item: message.pass_number == 0 and item == (2,),
        split=lambda items: [[item] for item in items],
    )
    runner = round_of(context_of(executor, errors))
    with pytest.raises(RunError, match=r"^client 2: failed in round 5: its worker died"):
        runner.run(work_of())
    runner.passes += 1
    assert runner.run(work_of([1, 2])).clients == (1, 2)


def test_a_worker_that_dies_on_a_retry_loses_no_client_that_arrived(errors):
    executor = FakeExecutor(failing={4: 1}, dies=lambda message, item: message.retry)
    options = {"on_client_error": "drop", "stack_size": 3}
    runner = round_of(context_of(executor, errors, **options))
    assert runner.run(work_of()).clients == (0, 1, 2, 3, 5)
    assert [failure.client for failure in runner.log.dropped] == [4]


def test_a_round_without_clients_stops(errors):
    executor = FakeExecutor(failing=dict.fromkeys(CLIENTS, 2))
    context = context_of(executor, errors, on_client_error="drop")
    line = "^round 5: no client is left; the last one, client 5, failed: its loss is nan$"
    with pytest.raises(RunError, match=line):
        round_of(context).run(work_of())
    with pytest.raises(RunError, match=r"^round 5: a pass has no clients$"):
        round_of(context).run(work_of(()))


@pytest.mark.parametrize(
    ("run", "work", "uniform"),
    [
        ("examples", None, False),
        ("uniform", None, True),
        ("examples", "uniform", True),
        ("uniform", "examples", False),
    ],
)
def test_weights_are_those_of_the_pass_or_of_the_run(errors, run, work, uniform):
    executor = FakeExecutor()
    clients = [1, 2, 4]
    runner = round_of(context_of(executor, errors, weighting=run))
    reduced = runner.run(work_of(clients, weighting=work))
    message, _ = executor.calls[0]
    assert (message.uniform, message.total_weight) == (uniform, 3 if uniform else 3 + 8 + 6)
    weights = None if uniform else SIZES[clients]
    mean = np.average([client + 0.1 for client in clients], weights=weights)
    assert float(reduced.means["model"]["w"][0]) == pytest.approx(mean, rel=1e-6)


def test_work_of_their_own_reaches_costs_and_message(errors):
    executor = FakeExecutor()
    epochs, lr = {0: 3, 2: 1, 3: 0}, {0: 0.5, 2: 0.25, 3: 0.0}
    runner = round_of(context_of(executor, errors))
    runner.run(work_of([0, 2, 3], epochs=epochs, lr=lr))
    message, costs = executor.calls[0]
    assert costs == {(0,): 15, (2,): 8, (3,): 1}
    assert {client: message.pass_.epochs_of(client) for client in epochs} == epochs
    assert {client: message.pass_.lr_of(client) for client in lr} == lr
    assert runner.log.columns[0]["steps"].tolist() == [15, 8, 0]
    assert runner.log.figures()["clients"] == 2  # that took steps
    assert set(runner.log.losses(())) == {0, 2}


def test_notes_of_workers_are_shown_once_a_run(errors):
    listener = Notes()
    executor = FakeExecutor(notes=("a slow kernel",), split=lambda items: [items[:2], items[2:]])
    context = context_of(executor, errors, listener=listener)
    for number in range(2):
        round_of(context, number=number).run(work_of())
    assert listener.notes == ["a slow kernel"]


def test_progress_counts_clients(errors):
    class Progress(raysim.Listener):
        def __init__(self) -> None:
            self.seen: list[tuple[int, int]] = []

        def progress(self, done: int, total: int) -> None:
            self.seen.append((done, total))

    listener = Progress()
    context = context_of(FakeExecutor(failing={1: 1}), errors, listener=listener, stack_size=2)
    round_of(context).run(work_of())
    assert listener.seen == [(2, 6), (4, 6), (6, 6), (2, 2)]
