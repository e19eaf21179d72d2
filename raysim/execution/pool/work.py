"""Work of a pool or a foreman: items of one of the workers' methods, with messages and results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from raysim.execution.base import Call
from raysim.execution.messages import Directions, FailedItem, WorkerResult
from raysim.execution.pool.actor import Part
from raysim.execution.pool.broadcasts import Reference, fetch
from raysim.execution.scheduling.schedule import Schedule
from raysim.execution.scheduling.worker_items import Item


@dataclass
class Work:
    """Items for a method of the workers, as long as the pool lives.

    Attributes:
        call: The method.
        schedule: The items' schedule.
        messages: Message and directions of each item that has not been handed over.
        results: Results that have been handed over, until they are taken.
        reading: Seconds of reading the last result.
    """

    call: Call
    schedule: Schedule
    messages: dict[Item, tuple[Reference, ...]] = field(default_factory=dict)
    results: deque[WorkerResult | FailedItem] = field(default_factory=deque)
    reading: float = 0.0

    def parts(self, items: Iterable[Item]) -> list[Part]:
        """Return items by message."""
        parts: dict[tuple[Reference, ...], list[Item]] = {}
        for item in items:
            parts.setdefault(self.messages[item], []).append(item)
        return [*parts.items()]

    def move_to(self, schedule: Schedule) -> None:
        """Add all items that have not been handed over to a new schedule, by their directions."""
        self.schedule = schedule
        for (_, reference), items in self.parts(self.messages):
            directions: Directions = fetch(reference)
            places = directions.order
            order = {item: places[item] for item in items} if places else None
            schedule.hold_seconds = directions.hold_seconds
            schedule.add({item: directions.costs[item] for item in items}, order=order)

    def forget(self, items: Iterable[Item]) -> None:
        """Forget the messages of items that have been handed over."""
        for item in items:
            del self.messages[item]
