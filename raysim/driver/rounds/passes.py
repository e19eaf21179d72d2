"""Passes of a round: send messages to the executor, sum results, retry failed clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from raysim.api.aggregation import ArrivedUpdates
from raysim.api.channel import beside_of
from raysim.api.differences import NO_TENSORS
from raysim.api.method import ServerState
from raysim.api.rules import LocalSteps, Pass, Reduced, samples_of
from raysim.api.state import State
from raysim.config import Settings
from raysim.driver.clock.lost import LostRoundError
from raysim.driver.evaluation.weights import Weights, weights_of
from raysim.driver.listeners.listener import Listener
from raysim.driver.rounds.hiding import as_seen
from raysim.driver.rounds.local_values import RoundValues
from raysim.driver.rounds.round_log import RoundLog
from raysim.driver.uploads.dispatch import Dispatch
from raysim.driver.uploads.kept_updates import ROOT_PASS, KeptUpdates, root_pass
from raysim.errors import RunError, SettingsError, without_passwords
from raysim.execution.base import Executor, Item
from raysim.execution.messages import FailedItem, Failure, PassMessage, WorkerResult
from raysim.execution.partial_sum import Columns, PartialSum, Sums, merge_sums
from raysim.numbers.arrays import Integers
from raysim.numbers.tensors import Tensors, flatten, unflatten
from raysim.storage.atomic import writing
from raysim.storage.client_states import StateVersion, Versions, latest_versions
from raysim.storage.trace import Stopwatch
from raysim.storage.updates import UpdateFiles
from raysim.training.stacked.stack_size import stacks_of


@dataclass(frozen=True)
class PassContext:
    """Parts that the passes of all rounds share.

    Attributes:
        settings: The run's settings.
        sizes: Training samples of each client [K].
        executor: Runs the clients.
        watch: Times the driver's phases.
        listener: Receives progress and notes.
        errors: File for tracebacks of clients.
        updates: Files of the updates that an aggregation sees one by one.
        drop_advice: The command that continues a run without failing clients.
        named: Returns a client's name for messages.
        weights: Weights of each client [K] from a user's table, or by tokens; None without either.
        stack_size: Clients in a stack; 1 trains them one at a time.
        shown_notes: Notes that the user has seen.
    """

    settings: Settings
    sizes: Integers
    executor: Executor
    watch: Stopwatch
    listener: Listener
    errors: Path
    updates: UpdateFiles
    drop_advice: str
    named: Callable[[int], str] = str
    weights: Weights | None = None
    stack_size: int = 1
    shown_notes: set[str] = field(default_factory=set)

    def weights_of(self, pass_: Pass, clients: Sequence[int]) -> Weights:
        """Return the weights of clients of a pass [n]."""
        of_pass = pass_.weighting
        weighting = of_pass if isinstance(of_pass, Mapping) else of_pass or self.settings.weighting
        return weights_of(weighting, self.settings.method, self.sizes, self.weights, clients)

    def weighting_of(self, pass_: Pass, clients: Sequence[int]) -> dict[str, Any]:
        """Return the fields of a `PassMessage` that describe the weights of a pass."""
        uniform = (pass_.weighting or self.settings.weighting) == "uniform"
        if not isinstance(pass_.weighting, Mapping) and (self.weights is None or pass_.weighting):
            return {"uniform": uniform}
        weights = self.weights_of(pass_, clients).tolist()
        return {"uniform": uniform, "weights": dict(zip(clients, weights, strict=True))}

    def note_once(self, note: str) -> None:
        """Show the user a note, once in this process."""
        if note not in self.shown_notes:
            self.shown_notes.add(note)
            self.listener.note(note)


@dataclass
class RoundRunner:
    """Runs the passes of one round.

    Attributes:
        context: Parts that the passes of all rounds share.
        number: Committed rounds, 0 in the first round.
        state: The server's state before the round.
        latest: Version of each client's committed state [K, 3], or NEVER.
        needed_from: Oldest round whose client states a checkpoint needs.
        values: Values of local training in the round.
        last_aggregates: State of the aggregation after the previous round.
        few: In a rehearsal, the clients that train in place of all, one local step each; empty
            otherwise.
        log: Figures of the passes so far.
        written: For each client, the last state version that this round wrote.
        obsolete: Clients' state versions that nothing reads after the round.
        passes: Number of passes so far.
    """

    context: PassContext
    number: int
    state: ServerState
    latest: Versions
    needed_from: int
    values: RoundValues
    last_aggregates: State = field(default_factory=dict)
    few: tuple[int, ...] = ()
    log: RoundLog = field(default_factory=RoundLog)
    written: dict[int, StateVersion] = field(default_factory=dict)
    obsolete: list[tuple[int, StateVersion]] = field(default_factory=list)
    passes: int = 0
    _round_states: dict[int, StateVersion] = field(default_factory=dict)

    @cached_property
    def updates(self) -> KeptUpdates:
        """Aggregation of the updates that passes keep."""
        context = self.context
        return KeptUpdates(
            aggregation=context.settings.aggregation,
            executor=context.executor,
            files=context.updates,
            number=self.number,
            log=self.log,
            last=self.last_aggregates,
        )

    def run(self, dispatch: Dispatch) -> Reduced:
        """Run one pass over clients.

        A method may continue after a failed pass. The failed pass still counts, so the next one has
        its own number, draws, opened groups and files.

        Raises:
            RunError: a client failed twice and `on_client_error` is "stop", or no client is left.
            SettingsError: the pass is over a client that is kept out of training.
        """
        context = self.context
        with self._counted(dispatch) as asked:
            dispatch = _of_few(dispatch, self.few) if self.few else dispatch
            clients = [*dispatch.clients] if self.few else asked
            with context.watch("broadcast"):
                message = self._message(dispatch, clients, self.passes)
            stacks = stacks_of(clients, context.sizes, context.stack_size if dispatch.epochs else 1)
            sums: Sums = {}
            failed_at: dict[Item, str] = {}
            failed = self.train(message, stacks, sums, failed_at)
            failed = self.train_again(message, stacks, sums, failed, failed_at)
            self._forget_states(failure.client for failure in failed)
            total = sums.get(self.number, PartialSum())
            if not total.clients:
                raise self._all_failed(failed[-1])
            sent = total.bytes_up
            received = int(dispatch.received_bytes(clients).sum())
            if sent:
                beside = beside_of(context.settings.stages, len(dispatch.asked))
                sent += len(total.clients) * beside.up
                received += len(clients) * beside.down
            if message.seal:
                with context.watch("reduction"):
                    message.seal.off(total)
                if total.bytes_up and (why := message.seal.lost(total.clients)):
                    self.log.count_lost_traffic(dispatch, sent, received)
                    raise LostRoundError(f"round {self.number + 1}: {why}")
            with context.watch("reduction"):
                columns = total.columns()
                columns |= dispatch.columns(columns["client"].astype(np.int64))
                reduced = total.reduced(message.total_weight, columns)
            if total.kept:
                with context.watch("reduction"):
                    reduced = self._aggregated(dispatch, total, reduced, columns)
            self.log.count(dispatch, sent, received, columns, self.passes)
            self._record_versions(total)
            return reduced

    def _all_failed(self, last: Failure) -> RunError:
        """Return the error for a pass in which all clients failed, given the last failure."""
        if self.few:
            client = self.context.named(last.client)
            return RunError(f"{last.cause} (client {client}, in a rehearsal of round 1)")
        return RunError(
            f"round {self.number + 1}: no client is left; the last one, client {last.client},"
            f" failed: {last.cause}"
        )

    @contextmanager
    def _counted(self, pass_: Pass) -> Iterator[list[int]]:
        """Count a pass and yield its clients; if the body fails, mark their states for deletion.

        Raises:
            RunError: the pass has no clients.
            SettingsError: the pass is over a client that is kept out of training.
        """
        clients = [int(client) for client in pass_.clients]
        new = self.context.settings.participants.first_new(clients)
        if new is not None:
            raise SettingsError(
                f"a pass is over client {new}, which evaluation.new_clients keeps out of training;"
                " passes over all clients are over Round.everyone"
            )
        if not clients:
            raise RunError(f"round {self.number + 1}: a pass has no clients")
        try:
            yield clients
        except BaseException:
            self._forget_states(clients)
            raise
        finally:
            self.passes += 1

    def _forget_states(self, clients: Iterable[int]) -> None:
        """Mark the states that clients wrote in this pass for deletion."""
        self.obsolete += [
            (client, StateVersion(self.number, self.passes, in_round))
            for client in clients
            for in_round in (False, True)
        ]

    def train(
        self,
        message: PassMessage,
        stacks: Sequence[Item],
        sums: Sums,
        failed_at: dict[Item, str],
    ) -> list[Failure]:
        """Train stacks, add their uploads to the sums, and return the failures.

        Args:
            message: The pass.
            stacks: The stacks.
            sums: Sums of the uploads so far.
            failed_at: The worker at which each stack failed; this call adds stacks that fail now.

        Raises:
            RunError: a client failed for good and `on_client_error` is "stop". The executor then
                has no stack left, because a run continues after an analysis that fails.
        """
        failed: list[Failure] = []
        clients = sum(map(len, stacks))
        costs = {stack: self.cost(message.pass_, stack) for stack in stacks}
        again = {stack: failed_at[stack] for stack in stacks if stack in failed_at}
        executor, listener = self.context.executor, self.context.listener
        executor.submit("train", message, costs, again)
        results = executor.results("train", lambda done: listener.progress(done, clients))
        for result in results:
            failures = [f for f in self.accept(result, sums) if f.client not in message.arrived]
            if isinstance(result, WorkerResult):
                failed_at |= {failure.stack: result.worker for failure in result.failures}
            self.log_failures(failures)
            failed += failures
        self.stop_at([failure for failure in failed if failure.final or message.retry])
        return sorted(failed, key=lambda failure: failure.client)

    def train_again(
        self,
        message: PassMessage,
        stacks: Sequence[Item],
        sums: Sums,
        failed: list[Failure],
        failed_at: dict[Item, str],
    ) -> list[Failure]:
        """Train stacks with a failed client once more; return the failures of dropped clients.

        Args:
            message: The pass.
            stacks: The stacks of the pass.
            sums: Sums of the uploads so far; this call adds the uploads of the second attempt.
            failed: The failures.
            failed_at: The worker at which each stack failed.
        """
        to_retry = {failure.client for failure in failed if not failure.final}
        if to_retry:
            retried = [stack for stack in stacks if not to_retry.isdisjoint(stack)]
            arrived = message.arrived.union(*(total.clients for total in sums.values()))
            message = replace(message, retry=True, arrived=arrived)
            failed = [failure for failure in failed if failure.final]
            failed += self.train(message, retried, sums, failed_at)
        self.log.dropped += failed
        return failed

    def _aggregated(
        self, dispatch: Dispatch, total: PartialSum, reduced: Reduced, columns: Columns
    ) -> Reduced:
        """Return the result of a pass with the aggregate of its kept updates.

        Args:
            dispatch: The pass.
            total: The sum of the clients that arrived.
            reduced: The result without the kept tensors.
            columns: Columns of the pass's clients; this call adds those of the aggregation.
        """
        samples = reduced.samples
        shares = self.context.weights_of(dispatch, reduced.clients).astype(np.float64)
        arrived = ArrivedUpdates(np.array(reduced.clients), samples, shares / shares.sum())
        arrived = as_seen(self.context.settings, self.context.settings.aggregation, arrived)
        root = NO_TENSORS
        if self.context.settings.aggregation.root_samples:
            root = self._trained_on_root(dispatch)
        means, more = self.updates.aggregate(
            dispatch, self.passes, total.kept, arrived, taken=columns, root=root
        )
        columns |= more
        return replace(reduced, means=unflatten(flatten(reduced.means) | means))

    def _trained_on_root(self, dispatch: Dispatch) -> Tensors:
        """Return the model, by `model/name`, after the server trains it on its root samples.

        Raises:
            RunError: the training fails.
            SettingsError: clients send tensors from an earlier pass.
        """
        dispatch = root_pass(dispatch)
        clients = [*dispatch.clients]
        message = self._message(dispatch, clients, ROOT_PASS + self.passes)
        message, sums = replace(message, versions={}, root=True), dict[int, PartialSum]()
        try:
            failed = self.train(message, [tuple(clients)], sums, {})
        except RunError as error:
            raise RunError(f"training on the server's root samples failed: {error}") from error
        if failed:
            raise RunError(f"training on the server's root samples failed: {failed[0].cause}")
        columns = sums[self.number].columns()
        self.log.more["root_train_loss"] = float(columns["train_loss"][0])
        return flatten(sums[self.number].reduced(message.total_weight, columns).means)

    def finish(self) -> None:
        """Make the round states obsolete; only this round reads them."""
        self.obsolete += self._round_states.items()
        self._round_states = {}

    def cost(self, pass_: Pass, stack: Item) -> float:
        """Return the cost of a stack: the number of samples that it trains on or reads."""
        sizes, batching = self.context.sizes, self.context.settings.local.batching
        if not isinstance(pass_.epochs, Mapping):
            return float(samples_of(pass_.epochs or 1, sizes[list(stack)], batching).sum())
        client_samples = (samples_of(pass_.epochs[c] or 1, sizes[[c]], batching) for c in stack)
        return float(sum(int(samples[0]) for samples in client_samples))

    def mean_cost(self, pass_: Pass) -> float:
        """Return the mean cost of all clients, if they all have the same epochs."""
        epochs = 1 if isinstance(pass_.epochs, Mapping) else pass_.epochs or 1
        batching = self.context.settings.local.batching
        return float(samples_of(epochs, self.context.sizes, batching).mean())

    def accept(self, result: WorkerResult | FailedItem, sums: Sums) -> list[Failure]:
        """Add the uploads of a result to the sums; return the clients that failed.

        Args:
            result: The result.
            sums: Sums of the uploads so far.
        """
        if isinstance(result, FailedItem):
            return [Failure(c, result.cause, result.cause, result.item, True) for c in result.item]
        with self.context.watch("reduction"):
            merge_sums(sums, result.sums)
        result.sums = {}  # frees them: the caller reads the next result before it drops this one
        self.log.spans.setdefault(result.worker, []).extend(result.spans)
        for note in result.notes:
            self.context.note_once(note)
        return result.failures

    def stop_at(self, failed: Sequence[Failure]) -> None:
        """Stop the run if clients failed for good, unless the run drops them.

        Args:
            failed: The failures of these clients.

        Raises:
            RunError: `failed` is not empty and `on_client_error` is "stop".
        """
        if failed and self.context.settings.on_client_error == "stop":
            outcome = "failed" if failed[0].final else "failed twice"
            raise RunError(
                f"client {self.context.named(failed[0].client)}: {outcome} in round"
                f" {self.number + 1}:"
                f" {failed[0].cause}",
                f" (traceback in {self.context.errors}; to continue without it,"
                f" {self.context.drop_advice})",
            )

    def log_failures(self, failures: Sequence[Failure]) -> None:
        """Append the tracebacks of failures to the run's file of errors."""
        if not failures:
            return
        path = self.context.errors
        with writing(path), path.open("a", encoding="utf-8") as file:
            for failure in failures:
                trace = without_passwords(failure.trace)
                client = self.context.named(failure.client)
                file.write(f"round {self.number + 1}, client {client}\n{trace}\n")

    def _message(self, dispatch: Dispatch, clients: list[int], pass_number: int) -> PassMessage:
        settings = self.context.settings
        return PassMessage.of(
            self.values.on(dispatch.of_clients),
            values=self.values.of_clients(clients),
            round_number=self.number,
            pass_number=pass_number,
            total_weight=int(self.context.weights_of(dispatch, clients).sum()),
            **self.context.weighting_of(dispatch, clients),
            initial_state=settings.method.client_init(self.state),
            versions=self.versions(clients),
            needed_from=self.needed_from,
            stored_groups=dispatch.stored_groups,
            samples=dispatch.samples,
            seal=dispatch.sealed(pass_number),
        )

    def versions(self, clients: list[int]) -> dict[int, tuple[StateVersion, ...]]:
        """Return the versions that each client reads: of its state, then of its round state."""
        participants = set(clients)
        by_client = latest_versions(self.latest, clients)
        by_client |= {client: (v,) for client, v in self.written.items() if client in participants}
        for client, version in self._round_states.items():
            if client in participants:
                by_client[client] = (*by_client.get(client, ()), version)
        return by_client

    def _record_versions(self, total: PartialSum) -> None:
        """Record the versions that a pass wrote; the round's earlier ones become obsolete."""
        for digests, latest, in_round in (
            (total.wrote_state, self.written, False),
            (total.wrote_round_state, self._round_states, True),
        ):
            self.obsolete += [(client, latest[client]) for client in digests if client in latest]
            for client, digest in digests.items():
                latest[client] = StateVersion(self.number, self.passes, in_round, digest)


def _of_few(dispatch: Dispatch, few: Sequence[int]) -> Dispatch:
    """Return a pass over a few of its clients, with one local step each.

    Args:
        dispatch: The pass.
        few: The clients; if the pass has none of them, its first clients take their place.
    """
    clients = [c for c in few if c in dispatch.clients] or [*map(int, dispatch.clients[: len(few)])]
    trains = any(dispatch.epochs_of(client) for client in clients)
    return replace(
        dispatch,
        clients=clients,
        epochs=LocalSteps(1) if trains else 0,
        personal={c: groups for c, groups in dispatch.personal.items() if c in clients},
        asked=clients,
    )
