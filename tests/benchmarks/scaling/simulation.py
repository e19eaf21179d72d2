"""A pool of any number of workers, simulated: the engine's own schedule on a clock of ours.

The schedule of `raysim.execution.pool`, which decides what the actors of a real pool do, decides it
here, and so does a foreman's backlog. Simulated are the seconds that clients take, the driver and
the foremen, which serve one message at a time, and the way between them. `Costs` says what messages
and sums cost.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import thread_time

from raysim.execution.scheduling.backlog import Backlog
from raysim.execution.scheduling.dealing import Speeds
from raysim.execution.scheduling.holding import hold_seconds
from raysim.execution.scheduling.schedule import IN_FLIGHT, Schedule
from raysim.execution.scheduling.worker_items import Assignment, Item

Reply = Callable[[float, float, Sequence[Item]], None]
"""Takes when a call's return arrives, its seconds, and the items whose results come with it."""


@dataclass(frozen=True)
class Costs:
    """Seconds that messages cost, and the sums in them.

    Attributes:
        send: Driver or foreman, to hand out a chunk.
        receive: Driver or foreman, to learn that a call has returned.
        latency: The way there, or back.
        call: The worker, around what it does in a call.
        pack: The worker, to hand over a sum.
        node_pack: A foreman, to do so.
        merge: The driver, to take a sum and add it up.
        node_merge: A foreman, to do so, with the cores of its workers.
        transfer: The driver's network, for a sum.
        broadcast: The driver's network, for the model to all nodes, which have it together: each
            asks the driver's for it before another has it whole.
    """

    send: float = 0.25e-3
    receive: float = 0.15e-3
    latency: float = 0.5e-3
    call: float = 0.3e-3
    pack: float = 1e-3
    node_pack: float = 1e-3
    merge: float = 1e-3
    node_merge: float = 1e-3
    transfer: float = 0.0
    broadcast: float = 0.0


@dataclass
class SimulatedRound:
    """What a round of W workers came to, in seconds of the simulated clock.

    Attributes:
        seconds: Until the last sum was added up.
        busy: Training, of all workers together.
        messages: Calls that workers were sent.
        sums: Sums that the driver added up.
        driver: The driver's own work, with the schedule's.
        deciding: The schedule's part of it, in CPU seconds that it took of this machine.
    """

    seconds: float = 0.0
    busy: float = 0.0
    messages: int = 0
    sums: int = 0
    driver: float = 0.0
    deciding: float = 0.0


class Clock:
    """Simulated clock: what happens when."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []

    def at(self, moment: float, event: Callable[[float], None]) -> None:
        """Have something happen at a moment, which it is given."""
        heapq.heappush(self._events, (moment, next(self._numbers), event))

    def next(self) -> None:
        """Have the next thing happen."""
        moment, _, event = heapq.heappop(self._events)
        event(moment)


class SimulatedWorker:
    """A worker, which does its calls one after another."""

    def __init__(self, play: Play, number: int) -> None:
        self._play, self._number = play, number
        self._free = 0.0
        self._held: list[Item] = []

    def call(self, arrives: float, assignment: Assignment, reply: Reply) -> None:
        """Work on items; reply when they are done."""
        play, costs = self._play, self._play.each
        took = sum(play.seconds_of(self._number, item) for item in assignment.items)
        around = costs.call + (costs.pack if assignment.hand_over else 0)
        begins = max(arrives, self._free)
        fetching = max(costs.broadcast - begins, 0)  # counts as work, as in the engine
        self._free = begins + fetching + took + around
        play.result.busy += took
        play.result.messages += 1
        self._held += assignment.items
        handed_over: list[Item] = []
        if assignment.hand_over:
            handed_over, self._held = self._held, []
        answer = partial(reply, seconds=fetching + took, handed_over=handed_over)
        play.clock.at(self._free + costs.latency, answer)


class Manager:
    """A process that schedules others, and serves one message at a time as they arrive.

    Attributes:
        free: When it is free.
        worked: Seconds that it has worked.
        deciding: Seconds of it that the schedule took of this machine.
        sums: Sums that it has added up.
        merge: Seconds that it takes to add one up.
    """

    def __init__(self, play: Play, managed: Sequence[SimulatedWorker | SimulatedForeman]) -> None:
        self._play, self._managed = play, managed
        self.merge = play.each.merge
        self.book: Schedule
        self.free = self.worked = self.deciding = 0.0
        self.sums = 0

    def fill_all(self) -> None:
        """Hand everyone what is due: a chunk to each, then the next to each."""
        for number in [*range(len(self._managed))] * IN_FLIGHT:
            self._fill(number)

    def hear(
        self, arrived: float, number: int, seconds: float, handed_over: Sequence[Item]
    ) -> None:
        """Serve the return of a call."""
        self.free = max(self.free, arrived)
        with self._decides():
            self.book.returned(number, seconds, handed_over)
        self.sums += bool(handed_over)
        self._work(self._play.each.receive + (self.merge if handed_over else 0))
        for each in [number] * IN_FLIGHT + self.book.woken():
            self._fill(each)

    def _fill(self, number: int) -> None:
        with self._decides():
            assignment = self.book.next(number)
        if assignment:
            self._work(self._play.each.send)
            arrives = self.free + self._play.each.latency
            self._managed[number].call(arrives, assignment, partial(self._arrive, number=number))

    def _arrive(
        self, arrived: float, number: int, seconds: float, handed_over: Sequence[Item]
    ) -> None:
        self.hear(arrived, number, seconds, handed_over)

    @contextmanager
    def _decides(self) -> Iterator[None]:
        """Count what the schedule takes of this machine."""
        begun = thread_time()
        yield
        took = thread_time() - begun
        self.deciding += took
        self._work(took)

    def _work(self, seconds: float) -> None:
        self.worked += seconds
        self.free += seconds


class SimulatedDriver(Manager):
    """The driver, to which sums come one after another through its network."""

    def __init__(
        self,
        play: Play,
        managed: Sequence[SimulatedWorker | SimulatedForeman],
        speeds: Speeds,
        costs: Mapping[Item, float],
    ) -> None:
        super().__init__(play, managed)
        self._network_free = 0.0
        with self._decides():
            self.book: Schedule = Schedule(costs, speeds, clock=lambda: self.free)
        self.book.hold_seconds = hold_seconds(play.each.merge, len(managed))

    def _arrive(
        self, arrived: float, number: int, seconds: float, handed_over: Sequence[Item]
    ) -> None:
        if handed_over:
            arrived = max(self._network_free, arrived) + self._play.each.transfer
            self._network_free = arrived
        hear = partial(self.hear, number=number, seconds=seconds, handed_over=handed_over)
        self._play.clock.at(arrived, hear)


class SimulatedForeman(Manager):
    """A foreman, which schedules the workers of its node."""

    def __init__(
        self, play: Play, managed: Sequence[SimulatedWorker], speeds: Speeds, foremen: int
    ) -> None:
        super().__init__(play, managed)
        self._replies: dict[int, Reply] = {}
        self.merge = play.each.node_merge
        self.book: Backlog = Backlog(speeds, lambda: self.free)
        self.book.hold_seconds = hold_seconds(self.merge, len(managed))
        self.book.answer_seconds = hold_seconds(play.each.merge, foremen)

    def call(self, arrives: float, assignment: Assignment, reply: Reply) -> None:
        """Take items in; reply when there is room for more, or all is done."""
        self._play.clock.at(arrives, partial(self._take, assignment=assignment, reply=reply))

    def _take(self, now: float, assignment: Assignment, reply: Reply) -> None:
        self.free = max(self.free, now)
        costs = {item: self._play.costs[item] for item in assignment.items}
        with self._decides():
            order = {item: self._play.order[item] for item in costs.keys() & self._play.order}
            number = self.book.add_call(costs, assignment.hand_over, order=order)
        self._replies[number] = reply
        self._work(self._play.each.receive)
        self.fill_all()
        self._answer()

    def hear(
        self, arrived: float, number: int, seconds: float, handed_over: Sequence[Item]
    ) -> None:
        """Serve the return of a call; answer the driver's calls where this is due."""
        super().hear(arrived, number, seconds, handed_over)
        self._answer()

    def _answer(self) -> None:
        for answer in self.book.answers():
            self._work(self._play.each.node_pack if answer.items else 0)
            reply = self._replies.pop(answer.call)
            reply = partial(reply, seconds=answer.seconds, handed_over=answer.items)
            self._play.clock.at(self.free + self._play.each.latency, reply)


class Play:
    """A round that is being played.

    Attributes:
        costs: The items, with the work of each as the schedule knows it.
        seconds_of: What an item takes a worker.
        each: What messages cost.
        clock: The clock.
        order: Places of the items in a line, if they are not to be dealt.
        result: What it comes to.
        foremen: The foremen, if there are any.
    """

    def __init__(
        self,
        costs: Mapping[Item, float],
        seconds_of: Callable[[int, Item], float],
        speeds: Speeds,
        nodes: Sequence[Speeds],
        each: Costs,
    ) -> None:
        """Deal the clients.

        Args:
            costs: The items, with the work of each as the schedule knows it.
            seconds_of: What an item takes a worker.
            speeds: What is known of those whom the driver schedules; the round adds to it.
            nodes: The same of each foreman's workers; none if the driver schedules workers.
            each: What messages cost.
        """
        self.costs, self.seconds_of, self.each = costs, seconds_of, each
        self.order: dict[Item, float] = {}
        self.clock, self.result = Clock(), SimulatedRound()
        sizes = [len(own.widths) for own in nodes] or [len(speeds.widths)]
        numbers = iter(range(sum(sizes)))
        workers = [[SimulatedWorker(self, next(numbers)) for _ in range(size)] for size in sizes]
        self.foremen = [
            SimulatedForeman(self, managed, own, len(nodes))
            for managed, own in zip(workers, nodes, strict=False)
        ]
        self._driver = self._make_driver(self.foremen or workers[0], speeds)

    def _make_driver(
        self, managed: Sequence[SimulatedWorker | SimulatedForeman], speeds: Speeds
    ) -> SimulatedDriver:
        return SimulatedDriver(self, managed, speeds, self.costs)

    def to_the_end(self) -> SimulatedRound:
        """Play it to the end."""
        driver, result = self._driver, self.result
        driver.fill_all()
        while not driver.book.finished:
            self.clock.next()
        result.seconds, result.sums = driver.free, driver.sums
        result.driver, result.deciding = driver.worked, driver.deciding
        return result
