"""Virtual clock of a run, and rounds in virtual time, whose passes end by the clock's policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from raysim.api.rules import Reduced, with_count
from raysim.clock.availability import TICKS_PER_SECOND
from raysim.clock.base import Policy
from raysim.clock.fleet import Fleet
from raysim.config import Settings
from raysim.driver.clock.costs import PassCosts, WorkCosts
from raysim.driver.clock.lost import LostRoundError
from raysim.driver.clock.policies import Outcome, outcome_of, sent_in_vain
from raysim.driver.rounds.passes import RoundRunner
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.errors import SettingsError
from raysim.execution.partial_sum import Columns
from raysim.federation.federation import Federation
from raysim.numbers.arrays import Floats, Integers
from raysim.numbers.tensors import Tensors
from raysim.storage.client_states import ClientStates
from raysim.storage.summary import LOST, VIRTUAL, VIRTUAL_JOULES, VIRTUAL_SECONDS


def open_clock(
    settings: Settings, federation: Federation, network: nn.Module, states: ClientStates
) -> VirtualClock | None:
    """Return the clock of a run; None without virtual time.

    Raises:
        DataError: a table cannot be read, or lacks a client.
        SettingsError: `clock.extra` asks for more clients than there are.
    """
    clients, policy = len(federation.training_sizes), settings.clock.server_policy
    fleet = settings.clock.fleet(clients, settings.seed)
    if fleet is None:
        return None
    if settings.cohort_size + policy.extra > clients:
        raise SettingsError(
            f"clock.extra={policy.extra}: with {settings.cohort_size} clients a round, must be at"
            f" most {clients - settings.cohort_size}, of {clients} clients"
        )
    return VirtualClock(policy, fleet, WorkCosts(settings, federation, network, states))


@dataclass(frozen=True)
class VirtualClock:
    """Virtual clock of one run.

    Attributes:
        policy: The server's policy.
        fleet: The clients' devices.
        costs: Costs of passes.
    """

    policy: Policy
    fleet: Fleet
    costs: WorkCosts

    def plain_seconds(self, model: Tensors, clients: Any) -> Floats:
        """Return the seconds that plain local training of a model takes clients [n]."""
        costs = self.costs.of_training(model, clients)
        flops, traffic = costs.flops(costs.epochs), (costs.bytes_up, costs.bytes_down)
        ticks = self.fleet.ticks(costs.clients, flops, *traffic, trips=costs.trips)
        return ticks / TICKS_PER_SECOND


@dataclass(frozen=True)
class _Timed:
    """Clients of a pass [n], their outcome, and their energy [n]."""

    clients: Integers
    outcome: Outcome
    joules: Floats

    def columns(self, clients: Integers) -> Columns:
        """Return columns of `clients.parquet` for clients of the pass."""
        order = np.argsort(self.clients)
        rows = order[np.searchsorted(self.clients[order], clients)]
        return {
            "virtual_start": self.outcome.starts[rows] / TICKS_PER_SECOND,
            VIRTUAL_SECONDS: self.outcome.ticks[rows] / TICKS_PER_SECOND,
            VIRTUAL_JOULES: self.joules[rows],
        }


@dataclass
class VirtualRound:
    """Round in virtual time, which runs passes only over clients whose results count.

    Attributes:
        clock: The run's clock.
        runner: Runs the round's passes.
        begin: Tick at which the round begins.
        tick: Tick that the round has reached.
        joules: Energy that all clients have spent.
    """

    clock: VirtualClock
    runner: RoundRunner
    begin: int
    tick: int
    joules: float = 0.0
    _wanted: int = 0
    _asked: frozenset[int] = frozenset()
    _extra: frozenset[int] = frozenset()
    _working: set[int] = field(default_factory=set)
    _lost: set[int] = field(default_factory=set)
    _passes: int = 0

    @classmethod
    def after(cls, clock: VirtualClock, runner: RoundRunner, ticks: int) -> VirtualRound:
        """Return the round that begins at the end of the previous one.

        Args:
            clock: The run's clock.
            runner: Runs the round's passes.
            ticks: Virtual time since the start of the run.
        """
        return cls(clock, runner, begin=ticks, tick=ticks)

    def ask(self, clients: Sequence[int], wanted: int) -> None:
        """Begin with the selected clients; those beyond the wanted number are extra ones."""
        self._wanted, self._asked = wanted, frozenset(clients)
        self._extra = frozenset(clients[wanted:])

    def before_pass(self, dispatch: Dispatch) -> Dispatch:
        """Return a pass over the clients whose results count; advance to the end of the pass.

        Raises:
            LostRoundError: no client's result counts.
            RunError: a client is not available for years.
        """
        fleet, costs = self.clock.fleet, self.clock.costs.of(dispatch, self.runner)
        outcome = self._outcome(costs)
        flops = costs.flops(outcome.epochs)
        whole = fleet.joules(costs.clients, flops, costs.bytes_up, costs.bytes_down)
        joules = outcome.share * whole
        self.tick, self._passes = outcome.end, self._passes + 1
        timed = _Timed(costs.clients, outcome, joules)
        self._working |= {*costs.clients.tolist()}
        self.joules += float(joules.sum())
        self._lost |= {*costs.clients[~outcome.counts].tolist()}
        self.runner.log.count_lost_traffic(dispatch, *sent_in_vain(fleet, costs, outcome))
        kept = np.flatnonzero(outcome.counts)
        if not len(kept):
            raise LostRoundError(f"round {self.runner.number + 1}: no client's result arrives")
        clients = costs.clients[kept].tolist()
        if len(kept) < len(costs.clients):
            personal = {
                client: dispatch.personal[client]
                for client in clients
                if client in dispatch.personal
            }
            dispatch = replace(dispatch, clients=clients, personal=personal)
        if (outcome.epochs != costs.epochs).any():
            counts = zip(clients, outcome.epochs[kept].tolist(), strict=True)
            own_work = {client: with_count(dispatch.epochs_of(client), n) for client, n in counts}
            dispatch = replace(dispatch, epochs=own_work, full_epochs=dispatch.epochs)
        return dispatch.with_step(UploadStep(server=partial(self._received, timed)))

    def _received(self, timed: _Timed, reduced: Reduced) -> Reduced:
        """Add virtual times and energy to the rows of the last pass."""
        columns = self.runner.log.columns[-1]
        columns |= timed.columns(columns["client"].astype(np.int64))
        return reduced

    def figures(self) -> dict[str, float]:
        """Return columns of `metrics.parquet`."""
        return {
            VIRTUAL_SECONDS: (self.tick - self.begin) / TICKS_PER_SECOND,
            VIRTUAL_JOULES: self.joules,
            LOST: len(self._lost),
        }

    def _outcome(self, costs: PassCosts) -> Outcome:
        """Return the outcome of a pass that begins now."""
        fleet, clients = self.clock.fleet, costs.clients
        known = self._working if self.clock.policy.waits else self._working | self._asked
        ready = np.isin(clients, [*known])
        starts = np.full(len(clients), self.tick)
        starts[~ready] = fleet.next_available(clients[~ready], self.tick)
        cut = self._asked.issuperset(clients.tolist())
        return outcome_of(
            self.clock.policy,
            fleet,
            costs,
            begin=self.tick,
            starts=starts,
            dropouts=fleet.dropouts(clients, self.runner.number, self._passes),
            extra=np.isin(clients, [*self._extra]),
            wanted=self._wanted if cut else len(clients),
        )


def in_no_time(runner: RoundRunner, dispatch: Dispatch) -> Dispatch:
    """Return a pass without virtual time; in a rehearsal, all clients arrive at once.

    Args:
        runner: Runs the pass.
        dispatch: The pass.
    """
    if not runner.few:
        return dispatch
    return dispatch.with_step(UploadStep(server=partial(_arrived_at_once, runner)))


def _arrived_at_once(runner: RoundRunner, reduced: Reduced) -> Reduced:
    settings, log = runner.context.settings, runner.log
    times, figures = list[str](), list[str]()
    if settings.clock.has_time:
        times += ["virtual_start", *VIRTUAL[:2]]
        figures += VIRTUAL
    if settings.asynchrony:
        times += ["version", "staleness"]
        figures += ["staleness_mean", "staleness_max", "updates_dropped"]
        none = dict.fromkeys(reduced.clients, 0)
        reduced = replace(reduced, staleness=none, tiers=none)
    log.columns[-1].update(dict.fromkeys(times, np.zeros(len(reduced.clients))))
    log.more |= dict.fromkeys(figures, 0.0)
    return reduced
