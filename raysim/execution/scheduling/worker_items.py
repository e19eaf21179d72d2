"""Items of one worker in a schedule: its queue, its calls, and the held results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

Item = tuple[int, ...]


class Assignment(NamedTuple):
    """Assignment of one call to a worker: a chunk, or the request to hand over.

    Attributes:
        items: The items to process.
        hand_over: Whether the worker then hands over the sum of all that it holds.
    """

    items: list[Item]
    hand_over: bool


@dataclass
class WorkerItems:
    """Items of one worker.

    Attributes:
        queue: Items that it has not been handed, longest first.
        in_flight: Its calls that have not returned, without items already handed over.
        work_in_flight: Total work of each of these calls.
        held: Items that it was handed and has not handed over, in this order.
        work: Work of the items in its queue.
        held_seconds: Duration of its calls since it last handed over.
        since: When its oldest call began.
        idle: Whether it has got no items for its last request.
        absent: Whether it is not known to have started.
        leaving: Whether it must hand over and gets no more items.
    """

    queue: deque[Item] = field(default_factory=deque)
    in_flight: deque[Assignment] = field(default_factory=deque)
    work_in_flight: deque[float] = field(default_factory=deque)
    held: dict[Item, None] = field(default_factory=dict)
    work: float = 0.0
    held_seconds: float = 0.0
    since: float = 0.0
    idle: bool = False
    absent: bool = False
    leaving: bool = False

    def accumulated(self) -> list[Item]:
        """Return the items of returned calls that have not been handed over."""
        in_flight = {item for call in self.in_flight for item in call.items}
        return [item for item in self.held if item not in in_flight]

    def hand_over(self, items: Iterable[Item]) -> list[Item]:
        """Note that the worker has handed over items; return the items of running calls.

        A foreman also hands over finished items of later calls. Such an item no longer belongs to
        its call: it may be added again before the call returns.
        """
        self.held_seconds = 0.0
        return self.strike_out(items)

    def strike_out(self, items: Iterable[Item]) -> list[Item]:
        """Remove some of the worker's items; return the items of running calls."""
        for item in items:
            del self.held[item]
        early = [item for call in self.in_flight for item in call.items if item not in self.held]
        for call in self.in_flight if early else ():
            call.items[:] = [item for item in call.items if item in self.held]
        return early

    def lose(self) -> tuple[Assignment, list[Item], list[Item]]:
        """Remove all items that the worker was handed.

        Returns:
            Its oldest call, the items of its other calls, and the items of returned calls that were
            not handed over.
        """
        accumulated = self.accumulated()
        oldest, *later = self.in_flight or [Assignment([], hand_over=False)]
        waiting = [item for call in later for item in call.items]
        self.in_flight, self.held, self.held_seconds = deque(), {}, 0.0
        self.work_in_flight = deque()
        self.idle, self.absent, self.leaving = False, True, False
        return oldest, waiting, accumulated
