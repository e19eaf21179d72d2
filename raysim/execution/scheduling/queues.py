"""Queues of a schedule's workers: items are dealt, taken over, and dealt again at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf

from raysim.execution.scheduling.dealing import Speeds, assign, remove, steal
from raysim.execution.scheduling.worker_items import Assignment, Item, WorkerItems

LEAVING_SECONDS = 1e9
"""Seconds that a leaving worker counts as busy, so that others get its allowed items."""


class Queues:
    """Queues of all workers.

    Attributes:
        workers: The workers, by number.
        costs: Work of each item.
        barred: The worker, if there are several, that must not have an item until it is lost, by
            item.
        deaths: Number of workers lost while they processed each item; such items are suspects.
        estimates: Work per second of each worker, as of the last update.
        last_dealt: Whether the last items are queued at the workers that finish them first.
    """

    def __init__(self, speeds: Speeds, clock: Callable[[], float]) -> None:
        self.workers = [WorkerItems() for _ in speeds.widths]
        self.costs: dict[Item, float] = {}
        self.barred: dict[Item, int] = {}
        self.deaths: Counter[Item] = Counter()
        self.last_dealt = False
        self._speeds, self._clock = speeds, clock
        self.look()

    def look(self) -> None:
        """Update the estimates of the workers' speeds."""
        self.estimates = self._speeds.estimates()

    def join(self) -> None:
        """Add a worker that has not started."""
        self.workers.append(WorkerItems(absent=True))
        self.look()

    def forget(self, number: int, items: Collection[Item]) -> None:
        """Remove the costs of items that a worker neither holds nor has in a call."""
        worker = self.workers[number]
        for item in items:
            if item not in worker.held:
                self.costs.pop(item, None)
                self.barred.pop(item, None)
                self.deaths.pop(item, None)

    def deal(self, costs: Mapping[Item, float]) -> None:
        """Deal new items together with the queued ones."""
        self.look()
        busy = [
            self.seconds_in_flight(number) + LEAVING_SECONDS * worker.leaving
            for number, worker in enumerate(self.workers)
        ]
        self._deal(costs, busy)

    def lose(self, number: int, suspicious: bool) -> tuple[Assignment, list[Item], list[Item]]:
        """Queue all items that a lost worker had not handed over; see `WorkerItems.lose`."""
        worker = self.workers[number]
        first, waiting, accumulated = worker.lose()
        if suspicious:
            self.deaths.update(first.items)
        worker.queue.extendleft(reversed([*waiting, *accumulated]))
        judge = self.other_than(number, first.items) if suspicious else number
        self.workers[judge].queue.extendleft(reversed(first.items))
        self.barred = {item: at for item, at in self.barred.items() if at != number}
        self.last_dealt = False
        self.update_work(number)
        self.update_work(judge)
        return first, waiting, accumulated

    def take_back(self, number: int, items: Collection[Item]) -> int:
        """Deal items that a worker gives back; return the number of their finished clients."""
        early = self.workers[number].strike_out(items)
        self.deal({item: self.costs[item] for item in items})
        return sum(map(len, items)) - sum(map(len, early))

    def strike_out(self, item: Item) -> None:
        """Remove an item that no worker has been handed."""
        number = next(n for n, worker in enumerate(self.workers) if item in worker.queue)
        self.workers[number].queue.remove(item)
        self.update_work(number)
        self.forget(number, [item])

    def clear(self) -> list[Item]:
        """Remove and return all items that no worker has been handed."""
        taken = [item for worker in self.workers for item in worker.queue]
        for worker in self.workers:
            worker.queue.clear()
            worker.work = 0.0
        return taken

    def deal_last(self) -> None:
        """Deal the last items to the started workers that finish them first."""
        self.look()
        busy = [
            inf if worker.absent or worker.leaving else self.seconds_in_flight(number)
            for number, worker in enumerate(self.workers)
        ]
        self._deal({}, busy)
        self.last_dealt = True

    def steal_for(self, number: int) -> None:
        """Move items to a worker from the longest queue, by its seconds."""
        barred = {item for item, at in self.barred.items() if at == number}
        others = [
            other
            for other, worker in enumerate(self.workers)
            if any(item not in barred for item in worker.queue)
        ]
        if not others:
            return
        self.look()
        victim = max(others, key=self._seconds_queued)
        self.workers[number].queue.extend(steal(self.workers[victim].queue, barred))
        self.update_work(number)
        self.update_work(victim)

    def other_than(self, number: int, items: Sequence[Item]) -> int:
        """Return another worker to test suspects on, or the same if there is none."""
        seen = {number, *(self.barred.get(item) for item in items)}
        others = [other for other in range(len(self.workers)) if other not in seen]
        return min(others, key=self._seconds_queued, default=number)

    def update_work(self, number: int) -> None:
        """Compute the work in a worker's changed queue."""
        worker = self.workers[number]
        worker.work = self.work(worker.queue)

    def work(self, items: Iterable[Item]) -> float:
        """Return the total work of items."""
        return sum(self.costs[item] for item in items)

    def _deal(self, costs: Mapping[Item, float], busy: Sequence[float]) -> None:
        """Deal items together with the queued ones; suspects come first."""
        queued = {item: self.costs[item] for worker in self.workers for item in worker.queue}
        dealt = assign(queued | dict(costs), self.estimates, self.barred, busy)
        everything = {item for items in dealt for item in items}
        for number, items in enumerate(dealt):
            queue = self.workers[number].queue
            remove(queue, everything)
            queue.extend(sorted(items, key=lambda item: item not in self.deaths))
            self.update_work(number)

    def _seconds_queued(self, number: int) -> float:
        return self.workers[number].work / self.estimates[number]

    def seconds_in_flight(self, number: int) -> float:
        """Return the seconds that a worker still needs for its assigned items."""
        worker, speed = self.workers[number], self.estimates[number]
        if not worker.in_flight:
            return 0.0
        first, *later = (self.work(call.items) / speed for call in worker.in_flight)
        return max(first - (self._clock() - worker.since), 0.0) + sum(later)
