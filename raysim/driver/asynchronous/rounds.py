"""Asynchronous rounds of a run: the versions that clients start from, and sums of their updates.

The driver submits a client to the workers as soon as its version exists. A round ends as soon as
all of its updates have arrived; other clients train meanwhile. The clients whose rounds end first
start first, so workers wait only if all clients of all existing versions are trained. Analyses may
run passes, so all submitted clients finish training before them.

By the plan, each update is added to the exact sum of the round that aggregates it. The time and
place of training change no bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from raysim.api.components import called
from raysim.api.rules import Pass, Reduced
from raysim.driver.asynchronous.arrivals import Flight, PlannedRound, Queue
from raysim.driver.asynchronous.checks import check_alike, check_pass
from raysim.driver.asynchronous.plan import Plan
from raysim.driver.asynchronous.times import DeviceTimes
from raysim.driver.clock.lost import LostRoundError
from raysim.driver.rounds.passes import PassContext, RoundRunner
from raysim.driver.uploads.dispatch import Dispatch
from raysim.driver.uploads.order import ORDER
from raysim.errors import SettingsError
from raysim.execution.base import Item
from raysim.execution.messages import Entry, FailedItem, Failure, PassMessage, WorkerResult
from raysim.execution.partial_sum import Columns, PartialSum, Sums
from raysim.numbers.tensors import CPU
from raysim.storage.client_states import StateVersion
from raysim.storage.in_flight import InFlight, StartedVersion
from raysim.training.stacked.stack_size import stacks_of


def sent_late(planned: PlannedRound) -> int:
    """Return the number of updates that arrived in a round but were too stale."""
    return sum(not flight.lost for flight in planned.dropped)


def bytes_of(
    dispatch: Dispatch,
    planned: PlannedRound,
    total: PartialSum,
    times: DeviceTimes | None,
) -> tuple[int, int]:
    """Return the bytes that clients sent by the end of a round, and received at its start.

    A client that drops out has received and sent as much as it had time for.

    Args:
        dispatch: The round's pass, over the clients that start in it.
        planned: The round.
        total: The sum of the round's arrivals.
        times: The clients' times; None without a clock, where no client is lost.
    """
    sent, received = 0, 0
    if times:
        sent, received = times.moved(planned.dropped)[0], times.moved(planned.started)[1]
    # Dropped updates are not computed; the device would have sent them nevertheless.
    sent += total.bytes_up + sent_late(planned) * total.bytes_up // max(len(total.clients), 1)
    whole = [flight.client for flight in planned.started if not flight.lost]
    return sent, received + int(dispatch.received_bytes(whole).sum())


@dataclass
class _Version:
    """Version that clients in flight started from.

    Attributes:
        started: The tensors and the learning rate of the version, and its clients.
        flights: Flights from the version whose updates are not aggregated yet, by client.
        waiting: Whether the clients are not submitted yet.
    """

    started: StartedVersion
    flights: Mapping[int, Flight]
    waiting: bool = True


@dataclass
class _Training:
    """Clients that the driver has submitted to the workers.

    Attributes:
        stacks: The stack of each client with an update to come.
        messages: The message of each stack.
    """

    stacks: dict[int, Item] = field(default_factory=dict)
    messages: dict[Item, PassMessage] = field(default_factory=dict)

    def end(self, clients: Sequence[int]) -> None:
        """Note that clients' updates have arrived, or will never arrive."""
        for stack in {self.stacks.pop(client) for client in clients}:
            if all(self.stacks.get(client) != stack for client in stack):
                del self.messages[stack]


class AsynchronousRounds:
    """Rounds of one run, for a method whose rounds overlap."""

    def __init__(
        self,
        context: PassContext,
        plan: Plan,
        times: DeviceTimes | None,
        in_flight: InFlight | None,
        first: Pass,
    ) -> None:
        """Continue with the clients in flight at a checkpoint, if there is one.

        Args:
            context: Parts that the passes of all rounds share.
            plan: The plan, from the checkpoint's queue on.
            times: The clients' times, if the run has a clock.
            in_flight: The clients in flight.
            first: The pass of the first round.
        """
        self._context, self._plan, self._times, self._first = context, plan, times, first
        self._versions: dict[int, _Version] = {}
        self._sums: Sums = {}
        self._training = _Training()
        if in_flight:
            flights = Queue.from_json(in_flight.queue).flights
            self._versions = {
                number: _Version(started, _of_version(number, flights))
                for number, started in in_flight.versions.items()
            }

    def cohort(self, number: int) -> tuple[int, ...]:
        """Return the clients that start in a round, ascending; may be empty."""
        return tuple(sorted(flight.client for flight in self._plan.round(number).started))

    def run(self, runner: RoundRunner, dispatch: Dispatch) -> Reduced:
        """Start the clients of a round's pass; return the result of the round's arrivals.

        Raises:
            SettingsError: the method's pass does not suit asynchronous rounds.
            LostRoundError: all clients of the round's updates were dropped.
            RunError: a client failed twice and `on_client_error` is "stop".
        """
        planned = self._plan.round(runner.number)
        self._check(runner, dispatch)
        self._start(runner, planned, dispatch)
        self._submit(runner, dispatch)
        self._wait(runner, planned)
        staleness = {f.client: planned.staleness(f) for f in planned.arrived}
        runner.log.more |= {
            "staleness_mean": sum(staleness.values()) / len(staleness),
            "staleness_max": max(staleness.values()),
            "updates_dropped": sent_late(planned),
            **(self._times.figures(planned) if self._times else {}),
        }
        total = self._sums.pop(planned.number, PartialSum())
        moved = bytes_of(dispatch, planned, total, self._times)
        if not total.clients:
            runner.log.count_lost_traffic(dispatch, *moved)
            raise LostRoundError(f"round {planned.number + 1}: no client's update arrives")
        with self._context.watch("reduction"):
            columns = total.columns()
            reduced = total.reduced(self._weight(dispatch, planned), columns)
        self._count(runner, dispatch, planned, moved, columns)
        runner.written |= _written(planned, total)
        tiers = {flight.client: flight.tier for flight in planned.arrived}
        return replace(reduced, staleness=staleness, tiers=tiers)

    def train_all(self, runner: RoundRunner) -> None:
        """Receive the updates of all submitted clients; raises the errors of `run`."""
        results = self._context.executor.results("train")
        for result in results:
            self._take(runner, result)

    def commit(self, number: int) -> InFlight:
        """Drop versions that no later round needs; return the clients in flight."""
        queue = self._plan.round(number).after
        due = [flight for flight in queue.flights if self._plan.target(flight) is not None]
        alive = {flight.version for flight in due}
        self._versions = {
            v: replace(version, flights=_of_version(v, due))
            for v, version in self._versions.items()
            if v in alive
        }
        self._plan.forget(number)
        started = {v: version.started for v, version in self._versions.items()}
        return InFlight(queue.to_json(), started)

    def _check(self, runner: RoundRunner, pass_: Pass) -> None:
        """Check that a pass is the only one of its round, and alike in all rounds."""
        method = self._context.settings.method
        if runner.passes:
            raise SettingsError(
                f"{called(method)}: asynchronous rounds have one pass; it runs several"
            )
        runner.passes += 1
        check_pass(method, pass_, self.cohort(runner.number))
        check_alike(method, self._first, pass_, runner.number)

    def _start(self, runner: RoundRunner, planned: PlannedRound, pass_: Pass) -> None:
        """Record a round's version, with the clients whose updates will count."""
        flights = {f.client: f for f in planned.started if self._plan.target(f) is not None}
        if flights and isinstance(pass_.lr, int | float):
            values = runner.values.of_clients([*flights])
            cohort = self.cohort(planned.number)
            started = StartedVersion(pass_.broadcast, pass_.lr, tuple(flights), values, cohort)
            self._versions[planned.number] = _Version(started, flights)

    def _submit(self, runner: RoundRunner, pass_: Pass) -> None:
        """Submit the clients in flight that are not submitted yet."""
        size = self._context.stack_size if pass_.epochs else 1
        for number, version in self._versions.items():
            if version.waiting:
                with self._context.watch("broadcast"):
                    message = self._message(runner, number, pass_, version)
                # The version keeps views of the packed message, not a second copy of the model.
                version.started = replace(version.started, groups=message.broadcast.open(CPU))
                stacks = stacks_of(version.started.clients, self._context.sizes, size)
                stacks = [s for s in stacks if not version.flights.keys().isdisjoint(s)]
                self._train(runner, message, stacks, {})
                version.waiting = False

    def _train(
        self,
        runner: RoundRunner,
        message: PassMessage,
        stacks: Sequence[Item],
        failed_at: Mapping[Item, str],
    ) -> None:
        """Submit stacks of a version, ordered by when the first update of each is due."""
        costs, due = {}, {}
        mean = runner.mean_cost(message.pass_)
        for stack in stacks:
            wanted = [client for client in stack if client not in message.arrived]
            self._training.stacks |= dict.fromkeys(wanted, stack)
            self._training.messages[stack] = message
            costs[stack] = runner.cost(message.pass_, stack)
            first = min(message.entries[client].round_number for client in wanted)
            due[stack] = mean * self._plan.updates(first)
        self._context.executor.submit("train", message, costs, failed_at, due)

    def _wait(self, runner: RoundRunner, planned: PlannedRound) -> None:
        """Receive results until all updates of a round have arrived."""
        arrived = {flight.client for flight in planned.arrived}
        clients, results = len(arrived), self._context.executor.results("train")
        while left := len(arrived & self._training.stacks.keys()):
            self._context.listener.progress(clients - left, clients)
            self._take(runner, next(results))
        self._context.listener.progress(clients, clients)

    def _take(self, runner: RoundRunner, result: WorkerResult | FailedItem) -> None:
        """Add the updates of a result to the sums; retry failed clients."""
        worker, arrived = "", list[int]()
        if isinstance(result, WorkerResult):
            worker = result.worker
            arrived = [client for total in result.sums.values() for client in total.clients]
        failures = runner.accept(result, self._sums)
        self._training.end(arrived)
        for stack in dict.fromkeys(failure.stack for failure in failures):
            stack_failures = [f for f in failures if f.stack == stack]
            self._try_again(runner, stack_failures, worker)

    def _try_again(self, runner: RoundRunner, failures: Sequence[Failure], worker: str) -> None:
        """Train a stack once more for its failed clients, or drop them."""
        stack = failures[0].stack
        message = self._training.messages.get(stack)
        if message is None:
            return  # the stack has ended: the failed clients' updates had arrived before
        failures = [f for f in failures if f.client not in message.arrived]
        last = [f for f in failures if f.final or message.retry]
        runner.log_failures(failures)
        runner.stop_at(last)
        runner.log.dropped += last
        again = {f.client for f in failures if f not in last}
        if again:
            message = replace(message, retry=True, arrived=message.arrived.union(stack) - again)
            self._train(runner, message, [stack], {stack: worker})
        self._training.end([failure.client for failure in last])

    def _message(
        self, runner: RoundRunner, number: int, pass_: Pass, version: _Version
    ) -> PassMessage:
        """Return the message to clients that started from a version."""
        started, flights = version.started, version.flights
        entries = {c: self._entry(pass_, flights[c]) for c in started.clients if c in flights}
        dispatch = self._dispatch(number, started)
        return PassMessage.of(
            runner.values.on(dispatch.of_clients),
            round_number=number,
            pass_number=0,
            total_weight=0,
            **self._context.weighting_of(pass_, started.clients),
            initial_state=self._context.settings.method.client_init(runner.state),  # of any round
            values=started.values,
            arrived=frozenset(started.clients) - entries.keys(),
            entries=entries,
            samples=dispatch.samples,
        )

    def _dispatch(self, number: int, started: StartedVersion) -> Dispatch:
        """Return the pass from a version, with the steps of uploads.

        It has the rules of the first round, because a client may start again in any round. The
        pass depends only on values that the version keeps.
        """
        settings = self._context.settings
        first = replace(
            self._first, clients=started.cohort, broadcast=started.groups, lr=started.lr
        )
        dispatch = Dispatch.of(first)
        for concern in ORDER:
            dispatch = concern.late(settings, number, started.cohort, dispatch)
        return dispatch

    def _entry(self, pass_: Pass, flight: Flight) -> Entry:
        """Return the entry of an update: its round, and its weight there."""
        target = self._plan.target(flight)
        if target is None:
            raise RuntimeError("no round aggregates the update")
        planned = self._plan.round(target)
        discount = self._context.settings.method.discount(planned.staleness(flight))
        return Entry(target, self._weight(pass_, planned), discount)

    def _weight(self, pass_: Pass, planned: PlannedRound) -> int:
        """Return the weight of all clients whose updates a round aggregates."""
        clients = [flight.client for flight in planned.arrived]
        return int(self._context.weights_of(pass_, clients).sum())

    def _count(
        self,
        runner: RoundRunner,
        dispatch: Dispatch,
        planned: PlannedRound,
        moved: tuple[int, int],
        columns: Columns,
    ) -> None:
        """Count a round: the bytes of starts and arrivals, and the arrived clients."""
        arrived = {flight.client: flight for flight in planned.arrived}
        flights = [arrived[int(client)] for client in columns["client"]]
        added = {
            "version": np.array([flight.version for flight in flights], dtype=np.float64),
            "staleness": np.array([planned.staleness(f) for f in flights], dtype=np.float64),
            **(self._times.columns(flights) if self._times else {}),
        }
        for number in {flight.version for flight in flights}:
            started = self._dispatch(number, self._versions[number].started)
            rows = added["version"] == number
            for name, values in started.columns(columns["client"][rows].astype(np.int64)).items():
                added.setdefault(name, np.zeros(len(flights)))[rows] = values
        runner.log.count(dispatch, *moved, {**columns, **added}, 0)


def _written(planned: PlannedRound, total: PartialSum) -> dict[int, StateVersion]:
    """Return the states that the arrived clients wrote."""
    return {
        flight.client: StateVersion(flight.version, 0, digest=total.wrote_state[flight.client])
        for flight in planned.arrived
        if flight.client in total.wrote_state
    }


def _of_version(number: int, flights: Sequence[Flight]) -> dict[int, Flight]:
    return {flight.client: flight for flight in flights if flight.version == number}
