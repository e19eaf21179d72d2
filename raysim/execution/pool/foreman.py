"""The foreman of a node: an actor that schedules the workers of its node and adds up their sums.

The driver hands it chunks as to a fast worker. The sums of its workers come through the node's
object store, in shared memory; one sum leaves the node. Its workers are actors of its own: Ray ends
them where it ends.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
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
from raysim.execution.pool.actor import ActorHandle, ClientActor, OrderReceived
from raysim.execution.pool.actors import Actors, NoActorError, Work
from raysim.execution.pool.backlog import Answer, Backlog
from raysim.execution.pool.broadcasts import Reference
from raysim.execution.pool.dealing import Speeds
from raysim.execution.pool.holding import hold_seconds

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
    message: list[Reference]
    items: list[Item]
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
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._waiting = Semaphore(0)
        self._failed: BaseException | None = None
        self._answers: dict[int, _Order] = {}
        self._work: Work | None = None
        self._total: Sums = {}
        self._results: list[WorkerResult | FailedItem] = []
        self._merge_seconds: dict[Call, float] = dict.fromkeys(get_args(Call), 0.0)

    def location(self) -> dict[str, Any]:
        """Return process, host and node of this actor."""
        node = ray.get_runtime_context().get_node_id()
        return {"pid": os.getpid(), "host": socket.gethostname(), "node": node}

    def start(self, spec: list[Reference]) -> dict[str, Any]:
        """Start the workers; return where they run."""
        place, engine = self._node_workers, ray.get(spec[0]).settings.engine
        torch.set_num_threads(min(place.workers, MOST_THREADS))  # workers that are done leave cores
        self._actors = Actors(engine, f"{place.cpus:g} CPUs and {place.gpus:g} GPUs on a node")
        self._speeds = {name: Speeds(place.workers) for name in get_args(Call)}
        make = place.worker()
        for number in range(place.workers):
            self._actors.add(ActorHandle(partial(make, number), spec))
        self._this_actor = ray.get_runtime_context().current_actor
        try:
            self._actors.wait_for_start(START_SECONDS)
        except NoActorError as error:
            raise RuntimeError(str(error)) from error  # other nodes may have room
        Thread(target=self._run, daemon=True).start()
        return {"workers": self._workers()}

    def call(
        self, name: Call, message: list[Reference], items: list[Item], hand_over: bool
    ) -> tuple[float, ForemanResult | None]:
        """Have the workers work on items; return as `Backlog` says."""
        order = _Order(name, message, items, hand_over)
        self._orders.put(order)
        self._waiting.release()
        if self._failed:
            raise self._failed
        return order.answer.result()

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
                work = self._work
                event = (
                    self._actors.next_event(work.schedule, wakeup)
                    if work
                    else self._actors.wait(wakeup)
                )
                if isinstance(event, OrderReceived):
                    wakeup = self._this_actor.wait_for_order.remote()
                    self._take(self._orders.get())
                elif event and work:
                    self._collect(work.call, self._actors.apply(event, work))
                self._answer()
        except BaseException as error:
            self._fail(RuntimeError(str(error)) if isinstance(error, NoActorError) else error)

    def _take(self, order: _Order) -> None:
        """Add the items of an order to the schedule; hand out what is due."""
        if self._work is None or self._work.message != order.message[:1]:
            self._directions: Directions = ray.get(order.message[1])
            self._work = self._begin(order)
        backlog, directions = self._backlog, self._directions
        costs = {item: directions.costs[item] for item in order.items}
        barred = {item: at for item, at in self._barred.items() if item in costs}
        self._answers[backlog.add(costs, order.hand_over, barred)] = order
        self._actors.begin(self._work)

    def _begin(self, order: _Order) -> Work:
        """Begin a call of the executor."""
        self._backlog = Backlog(self._speeds[order.name])
        self._backlog.hold_seconds = self._directions.hold_seconds
        self._backlog.schedule.hold_seconds = hold_seconds(
            self._merge_seconds[order.name], self._node_workers.workers
        )
        self._barred = self._actors.renew_failing(self._directions.failed_at)
        return Work(order.name, order.message[:1], self._backlog)

    def _collect(self, call: Call, results: list[WorkerResult | FailedItem]) -> None:
        """Add up the sums of a call's results."""
        for result in results:
            if isinstance(result, WorkerResult):
                begun = perf_counter()
                merge_sums(self._total, result.sums)
                result.sums = {}
                self._merge_seconds[call] = perf_counter() - begun
            self._results.append(result)

    def _answer(self) -> None:
        """Answer the calls of the driver that are due."""
        for answer in self._backlog.answers() if self._work else ():
            order = self._answers.pop(answer.call)
            order.answer.set_result((answer.seconds, self._result(answer)))

    def _result(self, answer: Answer) -> ForemanResult | None:
        """Return what is handed over with an answer."""
        if not answer.items:
            return None
        results, self._results = self._results, []
        for exact in filter(None, (total.sum for total in self._total.values())):
            exact.leaves_node = True
        for result in results:
            if isinstance(result, WorkerResult):
                result.sums, self._total = self._total, {}
        return ForemanResult(answer.items, results, self._workers())

    def _fail(self, error: BaseException) -> None:
        """Have all calls raise an error, from now on."""
        self._failed = error
        orders = [*self._answers.values()]
        while not self._orders.empty():
            orders.append(self._orders.get())
        for order in orders:
            order.answer.set_exception(error)
