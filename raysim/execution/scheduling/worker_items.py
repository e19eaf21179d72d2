"""Items of one worker in a schedule: its queue, its calls, and all that it has not handed over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

Item = tuple[int, ...]


class Assignment(NamedTuple):
    """Assignment of one call to a worker: a chunk, or the order to hand over.

    Attributes:
        items: What it works on.
        hand_over: Whether it then hands over the sum of all that it holds.
    """

    items: list[Item]
    hand_over: bool


@dataclass
class WorkerItems:
    """Items of one worker.

    Attributes:
        queue: Items that it has not been handed, longest first.
        in_flight: Its calls that have not returned, without what it has handed over of them.
        work_in_flight: Work of all that each of them was handed.
        held: Items that it was handed and has not handed over, in that order.
        work: Work of the items in its queue.
        held_seconds: Duration of its calls since it last handed over.
        since: When its oldest call began.
        idle: Whether it has asked in vain since it was last handed something.
        absent: Whether it has not started, as far as is known.
        leaving: Whether it is to hand over and get no more.
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
        """Return the items of calls that have returned which are not handed over."""
        in_flight = {item for call in self.in_flight for item in call.items}
        return [item for item in self.held if item not in in_flight]

    def hand_over(self, items: Iterable[Item]) -> list[Item]:
        """Note that the worker has handed over items; return those of calls that run.

        A foreman hands over what is done of later calls too. Such an item is no longer that call's:
        it may be added anew before the call returns.
        """
        self.held_seconds = 0.0
        return self.strike_out(items)

    def strike_out(self, items: Iterable[Item]) -> list[Item]:
        """Note that the worker has some items no more; return those of calls that run."""
        for item in items:
            del self.held[item]
        early = [item for call in self.in_flight for item in call.items if item not in self.held]
        for call in self.in_flight if early else ():
            call.items[:] = [item for item in call.items if item in self.held]
        return early

    def lose(self) -> tuple[Assignment, list[Item], list[Item]]:
        """Forget all that the worker was handed.

        Returns:
            Its oldest call, the items of its other calls, and of those of calls that have returned
            what is not handed over.
        """
        accumulated = self.accumulated()
        oldest, *later = self.in_flight or [Assignment([], hand_over=False)]
        waiting = [item for call in later for item in call.items]
        self.in_flight, self.held, self.held_seconds = deque(), {}, 0.0
        self.work_in_flight = deque()
        self.idle, self.absent, self.leaving = False, True, False
        return oldest, waiting, accumulated
