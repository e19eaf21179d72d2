"""Plan of a run's rounds, made as far ahead as the clients in flight need."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.api.method import Asynchrony
from raysim.driver.asynchronous.arrivals import Clock, Flight, PlannedRound, Queue, plan_round


class Plan:
    """Planned rounds after a committed one.

    When a client starts, the plan tells which round will aggregate its update, and the update's
    staleness then.
    """

    def __init__(
        self, asynchrony: Asynchrony, tiers: Sequence[Clock], queue: Queue, last: int
    ) -> None:
        """Start from a queue.

        Args:
            asynchrony: The overlap of rounds.
            tiers: The clock of each tier.
            queue: The queue of the last committed round.
            last: Number of rounds of the run.
        """
        self._asynchrony, self._tiers, self._last = asynchrony, tiers, last
        self._queue = queue
        self._rounds: dict[int, PlannedRound] = {}
        self._targets: dict[Flight, int | None] = {}
        self._updates: dict[int, int] = {}
        self._planned_updates = 0

    def round(self, number: int) -> PlannedRound:
        """Return a round that was not forgotten."""
        while number >= self._queue.number:
            self._extend()
        return self._rounds[number]

    def target(self, flight: Flight) -> int | None:
        """Return the round that aggregates a flight's update.

        It is None if the update is dropped, or arrives after the last round.
        """
        while flight not in self._targets and self._queue.number < self._last:
            self._extend()
        return self._targets.get(flight)

    def updates(self, number: int) -> int:
        """Return the number of updates aggregated from the first planned round to this one."""
        self.round(number)
        return self._updates[number]

    def forget(self, number: int) -> None:
        """Forget the rounds before `number`."""
        for gone in [planned_round for planned_round in self._rounds if planned_round < number]:
            planned = self._rounds.pop(gone)
            del self._updates[gone]
            for flight in (*planned.arrived, *planned.dropped):
                del self._targets[flight]

    def _extend(self) -> None:
        planned = plan_round(self._asynchrony, self._tiers, self._queue)
        self._rounds[planned.number] = planned
        self._queue = planned.after
        self._planned_updates += len(planned.arrived)
        self._updates[planned.number] = self._planned_updates
        self._targets |= dict.fromkeys(planned.dropped, None)
        self._targets |= dict.fromkeys(planned.arrived, planned.number)
