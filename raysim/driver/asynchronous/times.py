"""Virtual times of clients that start at any moment: those of a fleet, or of equal devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from raysim.clock.availability import TICKS_PER_SECOND
from raysim.clock.fleet import Fleet
from raysim.config import Settings
from raysim.core.components import calling
from raysim.core.errors import SettingsError
from raysim.core.method import Round, ServerState
from raysim.core.rules import Pass, Reduced
from raysim.driver.asynchronous.arrivals import Clock, Flight, PlannedRound
from raysim.driver.asynchronous.draws import Draws, Integers, always
from raysim.driver.passes import RoundRunner
from raysim.driver.virtual.clock import LOST, VIRTUAL_JOULES, VIRTUAL_SECONDS, VirtualClock
from raysim.execution.partial_sum import Columns


@dataclass(frozen=True)
class DeviceTimes:
    """Times of the devices of a fleet, which are the same from every version.

    Attributes:
        fleet: The devices.
        ticks: Ticks of each client's work [K].
        joules: Its energy [K].
    """

    fleet: Fleet
    ticks: Integers
    joules: npt.NDArray[np.float64]

    @classmethod
    def of(cls, clock: VirtualClock, work: Pass, runner: RoundRunner) -> DeviceTimes:
        """Return the times of all clients in the pass of one."""
        costs = clock.costs.of(work, runner)
        amounts = (costs.flops(costs.epochs), costs.bytes_up, costs.bytes_down)
        ticks = clock.fleet.ticks(costs.clients, *amounts)
        return cls(clock.fleet, ticks, clock.fleet.joules(costs.clients, *amounts))

    def clocks(self, seed: int, tiers: int) -> list[Clock]:
        """Return the clock of each tier, for the plan."""
        return [
            Clock(
                Draws(seed, members, self.fleet.available),
                self._fly,
                partial(self._wake, members),
            )
            for members in tiers_of(self.ticks, tiers)
        ]

    def figures(self, planned: PlannedRound) -> dict[str, float]:
        """Return columns of a round in `metrics.parquet`; energy is that of clients that ended."""
        ended = (*planned.arrived, *planned.dropped)
        return {
            VIRTUAL_SECONDS: (planned.after.tick - planned.begin) / TICKS_PER_SECOND,
            VIRTUAL_JOULES: float(self._spent(ended).sum()),
            LOST: sum(flight.lost for flight in planned.dropped),
        }

    def columns(self, flights: Sequence[Flight]) -> Columns:
        """Return columns [n] of clients in `clients.parquet`."""
        starts = np.array([flight.start for flight in flights])
        return {
            "virtual_start": starts / TICKS_PER_SECOND,
            VIRTUAL_SECONDS: self._worked(flights) / TICKS_PER_SECOND,
            VIRTUAL_JOULES: self._spent(flights),
        }

    def _spent(self, flights: Sequence[Flight]) -> npt.NDArray[np.float64]:
        """Return the energy of clients [n]; one that was lost has done a part of its work."""
        clients = [flight.client for flight in flights]
        spent: npt.NDArray[np.float64] = (
            self.joules[clients] * self._worked(flights) / self.ticks[clients]
        )
        return spent

    def _worked(self, flights: Sequence[Flight]) -> npt.NDArray[np.float64]:
        """Return the ticks that clients [n] worked, without those that they waited for others."""
        return np.array(
            [
                self._fly(f.client, f.start)[0] - f.start if f.lost else self.ticks[f.client]
                for f in flights
            ],
            dtype=np.float64,
        )

    def _fly(self, client: int, tick: int) -> tuple[int, bool]:
        ticks, share = int(self.ticks[client]), float(self.fleet.dropouts([client], tick)[0])
        lost = share < 1
        worked = int(np.ceil(ticks * share)) if lost else ticks
        return tick + max(worked, 1), lost

    def _wake(self, members: Integers, tick: int, busy: Collection[int]) -> int | None:
        others = np.setdiff1d(members, [*busy])
        return self.fleet.first_available(others, tick + 1) if len(others) else None


def equal_devices(settings: Settings, sizes: Integers, tiers: int) -> list[Clock]:
    """Return the clocks of tiers of devices always available: a tick a sample and local epoch."""
    ticks = settings.local.epochs * sizes
    return [
        Clock(
            draw=Draws(settings.seed, members, always),
            fly=lambda client, tick: (tick + int(ticks[client]), False),
            wake=lambda tick, busy: None,
        )
        for members in tiers_of(ticks, tiers)
    ]


def tiers_of(ticks: Integers, count: int) -> list[Integers]:
    """Return the clients of each tier, ascending; the fastest are the first tier.

    Tiers differ in size by one client at most, the first are the larger ones. Clients that take
    equally long go by their numbers.

    Args:
        ticks: Ticks of each client's work [K].
        count: Number of tiers.
    """
    return [np.sort(part) for part in np.array_split(np.argsort(ticks, kind="stable"), count)]


class _PassFoundError(Exception):
    """End of a method's round whose pass has been found."""


def pass_of(
    settings: Settings, inputs: Callable[[Callable[[Pass], Reduced]], Round], state: ServerState
) -> Pass:
    """Return the pass of a method's round, and run nothing.

    Args:
        settings: The run's settings.
        inputs: Returns the round's input, given what runs its pass.
        state: The state before it.

    Raises:
        SettingsError: it has none.
    """
    method = settings.method.model_copy(deep=True)  # what it notes of itself is not the run's
    found: list[Pass] = []

    def run(work: Pass) -> Reduced:
        found.append(work)
        raise _PassFoundError

    with calling(method, "round"), suppress(_PassFoundError):
        method.round(inputs(run), state)
    if not found:
        raise SettingsError(
            f"method.name={method.title}: asynchronous rounds have one pass; it runs none"
        )
    return found[0]
