"""Virtual clock of a run: the cohort of a round, and the passes that it lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from torch import nn

from raysim.clock.availability import TICKS_PER_SECOND
from raysim.clock.devices import Devices
from raysim.clock.fleet import Fleet
from raysim.clock.oort import Oort
from raysim.config import Settings
from raysim.core.errors import SettingsError
from raysim.core.rules import Pass, Reduced
from raysim.core.seeds import stream
from raysim.driver.passes import RoundRunner
from raysim.driver.riders import Rider
from raysim.driver.virtual.costs import PassCosts, WorkCosts
from raysim.driver.virtual.lost import LostRoundError
from raysim.driver.virtual.policies import Outcome, outcome_of, sent_in_vain
from raysim.driver.virtual.selection import UTILITY, Selection, with_squared_loss
from raysim.execution.partial_sum import Columns
from raysim.federation.federation import Federation
from raysim.storage.client_states import ClientStates
from raysim.storage.recorder import RunRecorder

Integers = npt.NDArray[np.int64]
SEARCHED = 1 << 16
"""Clients that are asked at once whether they are available."""
VIRTUAL_SECONDS = "virtual_seconds"
VIRTUAL_JOULES = "virtual_joules"
LOST = "lost_clients"


def open_clock(
    settings: Settings, federation: Federation, network: nn.Module, states: ClientStates
) -> VirtualClock | None:
    """Return the clock of a run; None of one without virtual time.

    Raises:
        DataError: a table cannot be read, or lacks a client.
        SettingsError: more clients would be asked than there are.
    """
    clock, clients = settings.clock, len(federation.training_sizes)
    if not isinstance(clock, Devices):
        return None
    if settings.cohort_size + clock.extra > clients:
        raise SettingsError(
            f"clock.extra={clock.extra}: with {settings.cohort_size} clients a round, must be at"
            f" most {clients - settings.cohort_size}, of {clients} clients"
        )
    return VirtualClock(settings, clock, federation, network, states)


class VirtualClock:
    """Virtual clock of one run."""

    def __init__(
        self,
        settings: Settings,
        clock: Devices,
        federation: Federation,
        network: nn.Module,
        states: ClientStates,
    ) -> None:
        self.settings, self.clock = settings, clock
        self.clients = len(federation.training_sizes)
        self.fleet: Fleet = clock.fleet(self.clients, settings.seed)
        self.costs = WorkCosts(settings, federation, network, states)
        self.selection = (
            Selection(clock, self.costs.sizes, settings.seed) if isinstance(clock, Oort) else None
        )

    def round(self, recorder: RunRecorder, runner: RoundRunner) -> VirtualRound:
        """Return the next round, which begins when the last one ended.

        Args:
            recorder: Holds the rows of the rounds before, with their seconds.
            runner: Runs its passes.
        """
        rows = recorder.rows
        if self.selection:
            self.selection.restore(recorder.clients, runner.number)
        # A row holds whole ticks, exactly: up to 285 years.
        spent = sum(round(row[VIRTUAL_SECONDS] * TICKS_PER_SECOND) for row in rows)
        past = [row.get(UTILITY) or 0.0 for row in rows]
        return VirtualRound(self, runner, begin=spent, now=spent, past=past)


@dataclass(frozen=True)
class _Timed:
    """Clients of a pass [n], its outcome, and their energy [n]."""

    clients: Integers
    outcome: Outcome
    joules: npt.NDArray[np.float64]

    def columns(self, clients: Integers) -> Columns:
        """Return columns of `clients.parquet` for some of the clients."""
        order = np.argsort(self.clients)
        rows = order[np.searchsorted(self.clients[order], clients)]
        return {
            "virtual_start": self.outcome.starts[rows] / TICKS_PER_SECOND,
            VIRTUAL_SECONDS: self.outcome.ticks[rows] / TICKS_PER_SECOND,
            VIRTUAL_JOULES: self.joules[rows],
        }


@dataclass
class VirtualRound(Rider):
    """One round in virtual time: its passes are run on the clients whose results count.

    Attributes:
        clock: The run's clock.
        runner: Runs the round's passes.
        begin: Tick at which it begins.
        now: Tick that it has reached.
        past: UTILITY of the rounds before.
        joules: Energy that all clients have spent.
    """

    clock: VirtualClock
    runner: RoundRunner
    begin: int
    now: int
    past: list[float]
    joules: float = 0.0
    _wanted: int = 0
    _asked: frozenset[int] = frozenset()
    _extra: frozenset[int] = frozenset()
    _working: set[int] = field(default_factory=set)
    _lost: set[int] = field(default_factory=set)
    _passes: int = 0
    _last: _Timed | None = None

    def cohort(self, drawn: Sequence[int]) -> tuple[int, ...]:
        """Return the clients that are asked, given those that the method drew.

        A server that waits for all asks those. Others ask clients that are available: those of them
        that are, then others drawn uniformly, and `clock.extra` on top. Where nobody is, time goes
        on until somebody is.
        """
        chosen = [*drawn]
        if self.clock.clock.policy != "wait" or self.clock.selection:
            chosen = self._available(drawn)
            if not chosen:
                everyone = np.arange(self.clock.clients)
                self.now = self.clock.fleet.first_available(everyone, self.now)
                chosen = self._available(drawn)
        self._wanted, self._asked = len(drawn), frozenset(chosen)
        self._extra = frozenset(chosen[len(drawn) :])
        return tuple(sorted(chosen))

    def dress(self, work: Pass) -> Pass:
        """Return a pass over the clients whose results count; advance to its end.

        Raises:
            LostRoundError: no client's result counts.
            RunError: a client is not available for years.
        """
        fleet, costs = self.clock.fleet, self.clock.costs.of(work, self.runner)
        outcome = self._outcome(costs)
        flops = costs.flops(outcome.epochs)
        whole = fleet.joules(costs.clients, flops, costs.bytes_up, costs.bytes_down)
        joules = outcome.share * whole
        self.now, self._passes = outcome.end, self._passes + 1
        self._last = _Timed(costs.clients, outcome, joules)
        self._working |= {*costs.clients.tolist()}
        self.joules += float(joules.sum())
        self._lost |= {*costs.clients[~outcome.counts].tolist()}
        self.runner.log.count_in_vain(work, *sent_in_vain(fleet, costs, outcome))
        kept = np.flatnonzero(outcome.counts)
        if not len(kept):
            raise LostRoundError(f"round {self.runner.number + 1}: no client's result arrives")
        clients = costs.clients[kept].tolist()
        if len(kept) < len(costs.clients):
            own = {client: work.personal[client] for client in clients if client in work.personal}
            work = replace(work, clients=clients, personal=own)
        if (outcome.epochs != costs.epochs).any():
            epochs = outcome.epochs[kept].tolist()
            work = replace(work, epochs=dict(zip(clients, epochs, strict=True)))
        return with_squared_loss(work) if self.clock.selection else work

    def undress(self, reduced: Reduced) -> Reduced:
        """Add virtual times and energy to the rows of the pass that was just run."""
        if self._last:
            columns = self.runner.log.columns[-1]
            columns |= self._last.columns(columns["client"].astype(np.int64))
        return reduced

    def figures(self) -> dict[str, float]:
        """Return columns of `metrics.parquet`."""
        selection, log = self.clock.selection, self.runner.log
        return {
            VIRTUAL_SECONDS: (self.now - self.begin) / TICKS_PER_SECOND,
            VIRTUAL_JOULES: self.joules,
            LOST: len(self._lost),
            **(selection.figures(self.runner.number, log.columns) if selection else {}),
        }

    def _available(self, drawn: Sequence[int]) -> list[int]:
        """Return the clients that are available now, as many as wanted where there are so many."""
        clock, number = self.clock, self.runner.number
        wanted = len(drawn) + clock.clock.extra
        if clock.selection:
            here = self._of_available(np.arange(clock.clients))
            ticks = clock.costs.plain_ticks(clock.fleet, self.runner)
            return clock.selection.asked(number, wanted, here, ticks, self.past)
        chosen = self._of_available(np.array(drawn))[:wanted]
        if len(chosen) == wanted:
            return [*map(int, chosen)]
        draws = stream(clock.settings.seed, "cohort/more", number)
        others = draws.permutation(clock.clients)
        others = others[~np.isin(others, drawn)]
        for first in range(0, len(others), SEARCHED):
            more = self._of_available(others[first : first + SEARCHED])
            chosen = np.concatenate([chosen, more])[:wanted]
            if len(chosen) == wanted:
                break
        return [*map(int, chosen)]

    def _of_available(self, clients: Integers) -> Integers:
        return clients[self.clock.fleet.available(clients, self.now)]

    def _outcome(self, costs: PassCosts) -> Outcome:
        """Return the outcome of a pass that begins now."""
        fleet, clients = self.clock.fleet, costs.clients
        known = self._working if self.clock.clock.policy == "wait" else self._working | self._asked
        ready = np.isin(clients, [*known])
        starts = np.full(len(clients), self.now)
        starts[~ready] = fleet.next_available(clients[~ready], self.now)
        cut = self._asked.issuperset(clients.tolist())
        return outcome_of(
            self.clock.clock,
            fleet,
            costs,
            begin=self.now,
            starts=starts,
            dropouts=fleet.dropouts(clients, self.runner.number, self._passes),
            extra=np.isin(clients, [*self._extra]),
            wanted=self._wanted if cut else len(clients),
        )
