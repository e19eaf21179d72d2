"""Virtual times of clients that start at any tick, for a fleet or for equal devices."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from raysim.api.rules import samples_of
from raysim.clock.availability import TICKS_PER_SECOND
from raysim.clock.fleet import Fleet
from raysim.config import Settings
from raysim.driver.asynchronous.arrivals import Clock, Flight, PlannedRound
from raysim.driver.asynchronous.draws import Draws, always
from raysim.driver.clock.clock import VirtualClock
from raysim.driver.clock.policies import moved_until
from raysim.driver.rounds.passes import RoundRunner
from raysim.driver.uploads.dispatch import Dispatch
from raysim.execution.partial_sum import Columns
from raysim.numbers.arrays import Floats, Integers
from raysim.storage.summary import LOST, VIRTUAL_JOULES, VIRTUAL_SECONDS


@dataclass(frozen=True)
class DeviceTimes:
    """Times of the devices of a fleet; they are the same for all versions.

    Attributes:
        fleet: The devices.
        ticks: Ticks that each client's work takes [K].
        joules: Energy that it takes [K].
        bytes_up: Bytes that each client sends [K].
        bytes_down: Bytes that each client receives [K].
    """

    fleet: Fleet
    ticks: Integers
    joules: Floats
    bytes_up: Integers
    bytes_down: Integers

    @classmethod
    def of(cls, clock: VirtualClock, dispatch: Dispatch, runner: RoundRunner) -> DeviceTimes:
        """Return the times of all clients [K] in a pass over all of them."""
        costs = clock.costs.of(dispatch, runner)
        amounts = (costs.flops(costs.epochs), costs.bytes_up, costs.bytes_down)
        ticks = clock.fleet.ticks(costs.clients, *amounts)
        joules = clock.fleet.joules(costs.clients, *amounts)
        return cls(clock.fleet, ticks, joules, costs.bytes_up, costs.bytes_down)

    def clocks(self, settings: Settings, sizes: Integers, tiers: int) -> list[Clock]:
        """Return the clock of each tier."""
        draws = (
            Draws(settings, sizes, members, self.ticks, self.fleet.available)
            for members in tiers_of(self.ticks, tiers, settings.participants.chosen)
        )
        return [Clock(t.draw, self._fly, t.wake) for t in (_Tier(self.fleet, d) for d in draws)]

    def figures(self, planned: PlannedRound) -> dict[str, float]:
        """Return columns of `metrics.parquet`; the energy is that of clients that have ended."""
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

    def moved(self, flights: Sequence[Flight]) -> tuple[int, int]:
        """Return the bytes that lost clients among flights send and receive before they drop."""
        lost = [flight for flight in flights if flight.lost]
        clients = [flight.client for flight in lost]
        device, whole = self.fleet.profiles(clients), self.ticks[clients]
        up, down = self.bytes_up[clients], self.bytes_down[clients]
        return moved_until(self._worked(lost), whole, device, up, down)

    def _spent(self, flights: Sequence[Flight]) -> Floats:
        """Return the energy of clients [n]; lost clients do a part of their work."""
        clients = [flight.client for flight in flights]
        spent: Floats = self.joules[clients] * self._worked(flights) / self.ticks[clients]
        return spent

    def _worked(self, flights: Sequence[Flight]) -> Floats:
        """Return the ticks that clients [n] worked, without waiting for others."""
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


class _Tier:
    """Draws and availability of the clients of a tier.

    If all clients of the tier are away, it does not search them again at each arrival of another
    tier.
    """

    def __init__(self, fleet: Fleet, draws: Draws) -> None:
        self._fleet, self._members, self._draws = fleet, draws.members, draws
        self._all_away = range(0)  # ticks

    def draw(
        self, number: int, refill: int, count: int, busy: Collection[int], tick: int
    ) -> Sequence[int]:
        """Draw clients; see `arrivals.Clock`."""
        away = tick in self._all_away
        return [] if away else self._draws(number, refill, count, busy, tick)

    def wake(self, tick: int, busy: Collection[int]) -> int | None:
        """Return the first later tick with an available, idle client; see `arrivals.Clock`."""
        if tick in self._all_away:
            return self._all_away.stop
        others = np.setdiff1d(self._members, [*busy])
        if not len(others):
            return None
        first = self._fleet.first_available(others, tick + 1)
        if len(others) == len(self._members):
            self._all_away = range(tick + 1, first)
        return first


def equal_devices(settings: Settings, sizes: Integers, tiers: int) -> list[Clock]:
    """Return clocks of tiers of always-available devices: a tick for each sample and epoch."""
    ticks = samples_of(settings.local.work, sizes, settings.local.batching)
    return [
        Clock(
            draw=Draws(settings, sizes, members, ticks, always),
            fly=lambda client, tick: (tick + int(ticks[client]), False),
            wake=lambda tick, busy: None,
        )
        for members in tiers_of(ticks, tiers, settings.participants.chosen)
    ]


def tiers_of(ticks: Integers, count: int, clients: Integers | None = None) -> list[Integers]:
    """Return the clients of each tier, ascending; the first tier has the fastest clients.

    Sizes of tiers differ by at most one client; the first tiers are larger. Ties are broken by
    client.

    Args:
        ticks: Ticks that each client's work takes [K].
        count: Number of tiers.
        clients: The clients to divide; None divides all.
    """
    clients = np.arange(len(ticks)) if clients is None else clients
    order = clients[np.argsort(ticks[clients], kind="stable")]
    return [np.sort(part) for part in np.array_split(order, count)]
