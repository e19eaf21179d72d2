"""The foreman of a node: an actor that schedules the workers of its node and adds up their sums.

The driver hands it chunks as to a fast worker. The sums of its workers come through the node's
object store, in shared memory; one sum leaves the node. Its workers are actors of its own: Ray ends
them where it ends.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Semaphore, Thread
from time import perf_counter
from typing import Any, get_args

import ray
import torch
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from raysim.execution.base import Call, Item
from raysim.execution.messages import Directions, FailedItem, ForemanResult, WorkerResult
from raysim.execution.module_path import with_driver_path
from raysim.execution.partial_sum import Sums, merge_sums
from raysim.execution.pool.actor import ActorHandle, ClientActor, OrderReceived, Part
from raysim.execution.pool.actors import Actors
from raysim.execution.pool.broadcasts import Reference
from raysim.execution.pool.work import Work
from raysim.execution.scheduling.backlog import Answer, Backlog
from raysim.execution.scheduling.dealing import Speeds
from raysim.execution.scheduling.holding import AT_ONCE, hold_seconds

START_SECONDS = 60.0
"""Seconds that a foreman waits for all of its workers; one is enough to start."""
MOST_THREADS = 8
"""Most threads that add sums up: the memory is busy then."""
THREADS = 16
"""Calls of a foreman at a time: more than the driver makes, and the wait for its orders."""


@dataclass(frozen=True)
class NodeWorkers:
    """Workers on a node, with a foreman or one alone.

    Attributes:
        node: The node.
        workers: Their number.
        cpus: CPUs that each reserves.
        gpus: GPUs that each reserves.
        led: Whether they have a foreman.
        groups: Placement groups in which they run, one each, where nodes are started for them.
    """

    node: str
    workers: int
    cpus: float
    gpus: float
    led: bool = True
    groups: tuple[PlacementGroup, ...] = ()

    def start(self) -> Any:
        """Make the foreman, or the only worker."""
        if not self.led:
            return self.worker()(0)
        # Plain values: an actor imports nothing of the project before its path is in order.
        values = (self.node, self.workers, self.cpus, self.gpus, self.groups)
        return self._on_node(Foreman, num_cpus=0, max_concurrency=THREADS).remote(*values)

    def worker(self) -> Callable[[int], Any]:
        """Return what makes the actor of a worker, by its number."""
        made = self._on_node(ClientActor, num_cpus=self.cpus, num_gpus=self.gpus)

        def make(number: int) -> Any:
            if not self.groups:
                return made.remote()
            strategy = PlacementGroupSchedulingStrategy(self.groups[number])
            return made.options(scheduling_strategy=strategy).remote()

        return make

    def _on_node(self, kind: type, **options: Any) -> Any:
        """Return `ray.remote` of an actor for this node alone; its types lack this strategy."""
        strategy = NodeAffinitySchedulingStrategy(self.node, soft=False)
        remote: Any = ray.remote
        return remote(scheduling_strategy=strategy, **options)(with_driver_path(kind))


@dataclass
class _Order:
    """A call of the driver, and its answer to come."""

    name: Call
    parts: list[Part]
    hand_over: bool
    answer: Future[tuple[float, ForemanResult | None]] = field(default_factory=Future)


class Foreman:
    """An actor that schedules the workers of its node, in a thread of its own."""

    def __init__(
        self,
        node: str,
        workers: int,
        cpus: float,
        gpus: float,
        groups: tuple[PlacementGroup, ...] = (),
    ) -> None:
        self._node_workers = NodeWorkers(node, workers, cpus, gpus, groups=groups)
        # None: leave the node; a future: say that the thread is at work.
        self._orders: SimpleQueue[_Order | Future[None] | None] = SimpleQueue()
        self._waiting = Semaphore(0)
        self._failed: BaseException | None = None
        self._backlogs: dict[Call, Backlog] = {n: Backlog(Speeds()) for n in get_args(Call)}
        self._works = {name: Work(name, backlog) for name, backlog in self._backlogs.items()}
        self._answers: dict[tuple[Call, int], _Order] = {}
        self._directions: tuple[Reference | None, Directions, Mapping[Item, int]]
        self._directions = (None, Directions({}, {}, AT_ONCE), {})
        self._totals: dict[Call, Sums] = {name: {} for name in get_args(Call)}
        self._results: dict[Call, list[WorkerResult | FailedItem]] = {n: [] for n in get_args(Call)}
        self._merge_seconds: dict[Call, float] = dict.fromkeys(get_args(Call), 0.0)

    def location(self) -> dict[str, Any]:
        """Return process, host and node of this actor."""
        node = ray.get_runtime_context().get_node_id()
        return {"pid": os.getpid(), "host": socket.gethostname(), "node": node}

    def start(self, spec: list[Reference]) -> dict[str, Any]:
        """Start the workers; return where they run."""
        place, engine = self._node_workers, ray.get(spec[0]).settings.engine
        torch.set_num_threads(min(place.workers, MOST_THREADS))  # workers that are done leave cores
        needs = f"{place.cpus:g} CPUs and {place.gpus:g} GPUs on a node"
        self._actors = Actors(engine, needs, [*self._works.values()])
        make = place.worker()
        for number in range(place.workers):
            for backlog in self._backlogs.values():
                backlog.schedule.join()
            self._actors.add(ActorHandle(partial(make, number), spec))
        self._this_actor = ray.get_runtime_context().current_actor
        self._actors.wait_for_start(START_SECONDS)
        Thread(target=self._run, daemon=True).start()
        return {"workers": self._workers()}

    def call(
        self, name: Call, parts: list[Part], hand_over: bool
    ) -> tuple[float, ForemanResult | None]:
        """Have the workers work on items; return as `Backlog` says."""
        order = _Order(name, parts, hand_over)
        self._orders.put(order)
        self._waiting.release()
        if self._failed:
            raise self._failed
        return order.answer.result()

    def leave(self) -> None:
        """Hand over what there is, and give back the rest, as the node is left."""
        self._orders.put(None)
        self._waiting.release()

    def answer(self) -> None:
        """Return when the thread that schedules has heard of it."""
        heard: Future[None] = Future()
        self._orders.put(heard)
        self._waiting.release()
        if self._failed:
            raise self._failed
        heard.result()

    def wait_for_order(self) -> None:
        """Return when an order has come; the foreman waits for this call beside its workers'."""
        self._waiting.acquire()

    def _workers(self) -> list[dict[str, Any]]:
        return [about for handle in self._actors.handles for about in handle.workers]

    def _run(self) -> None:
        """Serve orders and workers until the process ends."""
        wakeup = self._this_actor.wait_for_order.remote()
        try:
            while True:
                event = self._actors.next_event(wakeup)
                if isinstance(event, OrderReceived):
                    wakeup = self._this_actor.wait_for_order.remote()
                    self._take(self._orders.get())
                elif event:
                    self._actors.apply(event)
                for name in self._works:
                    self._collect(name)
                    self._answer(name)
        except BaseException as error:
            self._fail(error)

    def _take(self, told: _Order | Future[None] | None) -> None:
        """Add the items of an order to their backlog; hand out what is due."""
        if isinstance(told, Future):
            told.set_result(None)
            return
        if told is None:
            for backlog in self._backlogs.values():
                backlog.leave()
            self._actors.begin()  # what each has is to be handed over
            return
        self._answers[told.name, 0] = told  # it has no number yet, and has an answer if this fails
        work, backlog = self._works[told.name], self._backlogs[told.name]
        costs: dict[Item, float] = {}
        barred: dict[Item, int] = {}
        order: dict[Item, float] = {}
        for (message, reference), items in told.parts:
            directions, at = self._directed(told.name, reference)
            costs |= {item: directions.costs[item] for item in items}
            barred |= {item: at[item] for item in items if item in at}
            order |= {item: directions.order[item] for item in items if directions.order}
            work.messages |= dict.fromkeys(items, (message,))
        number = backlog.add(costs, told.hand_over, barred, order)
        self._answers[told.name, number] = self._answers.pop((told.name, 0))
        self._actors.begin()

    def _directed(self, name: Call, reference: Reference) -> tuple[Directions, Mapping[Item, int]]:
        """Return the directions to items, and who must not have which; hold sums as they say."""
        if self._directions[0] != reference:
            found: Directions = ray.get(reference)
            self._directions = (reference, found, self._actors.renew_failing(found.failed_at))
        _, directions, barred = self._directions
        own = hold_seconds(self._merge_seconds[name], self._node_workers.workers)
        at_once = directions.hold_seconds == AT_ONCE
        self._backlogs[name].hold_seconds = directions.hold_seconds
        self._backlogs[name].schedule.hold_seconds = AT_ONCE if at_once else own
        return directions, barred

    def _collect(self, name: Call) -> None:
        """Add up the sums of what workers have handed over."""
        work = self._works[name]
        while work.results:
            result = work.results.popleft()
            if isinstance(result, WorkerResult):
                begun = perf_counter()
                merge_sums(self._totals[name], result.sums)
                result.sums = {}
                self._merge_seconds[name] = work.reading + perf_counter() - begun
            self._results[name].append(result)

    def _answer(self, name: Call) -> None:
        """Answer the calls of the driver that are due."""
        for answer in self._backlogs[name].answers():
            order = self._answers.pop((name, answer.call))
            order.answer.set_result((answer.seconds, self._result(name, answer)))

    def _result(self, name: Call, answer: Answer) -> ForemanResult | None:
        """Return what is handed over with an answer."""
        if not (answer.items or answer.given_back):
            return None
        self._works[name].forget(answer.given_back)
        results, self._results[name] = self._results[name], []
        for exact in filter(None, (total.sum for total in self._totals[name].values())):
            exact.leaves_node = True
        for result in results:
            if isinstance(result, WorkerResult):
                result.sums, self._totals[name] = self._totals[name], {}
        return ForemanResult(answer.items, results, self._workers(), answer.given_back)

    def _fail(self, error: BaseException) -> None:
        """Have all calls raise an error, from now on."""
        self._failed = error
        orders: list[_Order | Future[None] | None] = [*self._answers.values()]
        while not self._orders.empty():
            orders.append(self._orders.get())
        for order in orders:
            if isinstance(order, _Order):
                order.answer.set_exception(error)
            elif order:
                order.set_exception(error)
