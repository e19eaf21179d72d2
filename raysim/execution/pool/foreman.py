"""Foreman of a node: an actor that schedules the workers of its node and adds up their sums.

The driver hands it chunks as to a fast worker. The sums of its workers come through the node's
object store, in shared memory; one sum leaves the node. Its workers are its own actors, which Ray
ends with it.
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
from raysim.execution.pool.actor import ActorHandle, CallReceived, ClientActor, Part
from raysim.execution.pool.actors import Actors
from raysim.execution.pool.broadcasts import Reference
from raysim.execution.pool.work import Work
from raysim.execution.scheduling.backlog import Answer, Backlog
from raysim.execution.scheduling.dealing import Speeds
from raysim.execution.scheduling.holding import AT_ONCE, hold_seconds

START_SECONDS = 60.0
"""Seconds that a foreman waits for all of its workers; then one is enough to start."""
MOST_THREADS = 8
"""Most threads that add up sums: they saturate the memory."""
THREADS = 16
"""Concurrent calls of a foreman: more than the driver makes, and its own wait for calls."""


@dataclass(frozen=True)
class NodeWorkers:
    """Workers on a node, with a foreman or a single one without.

    Attributes:
        node: The node.
        workers: Number of workers.
        cpus: CPUs that each worker reserves.
        gpus: GPUs that each worker reserves.
        led: Whether they have a foreman.
        groups: Placement groups of the workers, one each, if nodes are started for them.
    """

    node: str
    workers: int
    cpus: float
    gpus: float
    led: bool = True
    groups: tuple[PlacementGroup, ...] = ()

    def start(self) -> Any:
        """Create the foreman, or the only worker."""
        if not self.led:
            return self.worker()(0)
        # Plain values: an actor imports nothing of the project before its path is set.
        values = (self.node, self.workers, self.cpus, self.gpus, self.groups)
        return self._on_node(Foreman, num_cpus=0, max_concurrency=THREADS).remote(*values)

    def worker(self) -> Callable[[int], Any]:
        """Return a function that creates the actor of a worker, by its number."""
        made = self._on_node(ClientActor, num_cpus=self.cpus, num_gpus=self.gpus)

        def make(number: int) -> Any:
            if not self.groups:
                return made.remote()
            strategy = PlacementGroupSchedulingStrategy(self.groups[number])
            return made.options(scheduling_strategy=strategy).remote()

        return make

    def _on_node(self, kind: type, **options: Any) -> Any:
        """Return `ray.remote` of an actor on this node; Ray's types lack this strategy."""
        strategy = NodeAffinitySchedulingStrategy(self.node, soft=False)
        remote: Any = ray.remote
        return remote(scheduling_strategy=strategy, **options)(with_driver_path(kind))


@dataclass
class _DriverCall:
    """Call of the driver, with its future answer."""

    name: Call
    parts: list[Part]
    hand_over: bool
    answer: Future[tuple[float, ForemanResult | None]] = field(default_factory=Future)


class Foreman:
    """Actor that schedules the workers of its node, in its own thread."""

    def __init__(
        self,
        node: str,
        workers: int,
        cpus: float,
        gpus: float,
        groups: tuple[PlacementGroup, ...] = (),
    ) -> None:
        self._node_workers = NodeWorkers(node, workers, cpus, gpus, groups=groups)
        # None: leave the node; a future: answer that the thread is alive.
        self._calls: SimpleQueue[_DriverCall | Future[None] | None] = SimpleQueue()
        self._waiting = Semaphore(0)
        self._failed: BaseException | None = None
        self._backlogs: dict[Call, Backlog] = {n: Backlog(Speeds()) for n in get_args(Call)}
        self._works = {name: Work(name, backlog) for name, backlog in self._backlogs.items()}
        self._answers: dict[tuple[Call, int], _DriverCall] = {}
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
        """Start the workers; return their locations and devices."""
        place, engine = self._node_workers, ray.get(spec[0]).settings.engine
        torch.set_num_threads(min(place.workers, MOST_THREADS))  # finished workers leave cores
        needs = f"{place.cpus:g} CPUs and {place.gpus:g} GPUs on a node"
        self._actors = Actors(engine, needs, [*self._works.values()])
        make = place.worker()
        for number in range(place.workers):
            for backlog in self._backlogs.values():
                backlog.join()
            self._actors.add(ActorHandle(partial(make, number), spec))
        self._this_actor = ray.get_runtime_context().current_actor
        self._actors.wait_for_start(START_SECONDS)
        Thread(target=self._run, daemon=True).start()
        return {"workers": self._workers()}

    def call(
        self, name: Call, parts: list[Part], hand_over: bool
    ) -> tuple[float, ForemanResult | None]:
        """Let the workers process items; return when `Backlog` answers the call."""
        call = _DriverCall(name, parts, hand_over)
        self._calls.put(call)
        self._waiting.release()
        if self._failed:
            raise self._failed
        return call.answer.result()

    def leave(self) -> None:
        """Leave the node: hand over finished items, and give back the rest."""
        self._calls.put(None)
        self._waiting.release()

    def answer(self) -> None:
        """Return when the scheduling thread has received this call."""
        heard: Future[None] = Future()
        self._calls.put(heard)
        self._waiting.release()
        if self._failed:
            raise self._failed
        heard.result()

    def wait_for_call(self) -> None:
        """Return when a call has come; the foreman waits for this and its workers' calls."""
        self._waiting.acquire()

    def _workers(self) -> list[dict[str, Any]]:
        return [about for handle in self._actors.handles for about in handle.workers]

    def _run(self) -> None:
        """Serve calls and workers until the process ends."""
        wakeup = self._this_actor.wait_for_call.remote()
        try:
            while True:
                event = self._actors.next_event(wakeup)
                if isinstance(event, CallReceived):
                    wakeup = self._this_actor.wait_for_call.remote()
                    self._take(self._calls.get())
                elif event:
                    self._actors.apply(event)
                for name in self._works:
                    self._collect(name)
                    self._answer(name)
        except BaseException as error:
            self._fail(error)

    def _take(self, call: _DriverCall | Future[None] | None) -> None:
        """Add the items of a call to their backlog, and hand out due assignments."""
        if isinstance(call, Future):
            call.set_result(None)
            return
        if call is None:
            for backlog in self._backlogs.values():
                backlog.leave_node()
            self._actors.begin()  # each is asked to hand over
            return
        self._answers[call.name, 0] = call  # unnumbered, so that a failure below answers it
        work, backlog = self._works[call.name], self._backlogs[call.name]
        costs: dict[Item, float] = {}
        barred: dict[Item, int] = {}
        order: dict[Item, float] = {}
        for (message, reference), items in call.parts:
            directions, at = self._directed(call.name, reference)
            costs |= {item: directions.costs[item] for item in items}
            barred |= {item: at[item] for item in items if item in at}
            order |= {item: directions.order[item] for item in items if directions.order}
            work.messages |= dict.fromkeys(items, (message,))
        number = backlog.add_call(costs, call.hand_over, barred, order)
        self._answers[call.name, number] = self._answers.pop((call.name, 0))
        self._actors.begin()

    def _directed(self, name: Call, reference: Reference) -> tuple[Directions, Mapping[Item, int]]:
        """Return the directions to items and their excluded workers; set the holding time."""
        if self._directions[0] != reference:
            received: Directions = ray.get(reference)
            self._directions = (reference, received, self._actors.renew_failing(received.failed_at))
        _, directions, barred = self._directions
        seconds = hold_seconds(self._merge_seconds[name], self._node_workers.workers)
        at_once = directions.hold_seconds == AT_ONCE
        self._backlogs[name].answer_seconds = directions.hold_seconds
        self._backlogs[name].hold_seconds = AT_ONCE if at_once else seconds
        return directions, barred

    def _collect(self, name: Call) -> None:
        """Add up the sums that workers have handed over."""
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
        """Answer the due calls of the driver."""
        for answer in self._backlogs[name].answers():
            call = self._answers.pop((name, answer.call))
            call.answer.set_result((answer.seconds, self._result(name, answer)))

    def _result(self, name: Call, answer: Answer) -> ForemanResult | None:
        """Return the result of an answer; None without one."""
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
        """Raise an error in all present and future calls."""
        self._failed = error
        calls: list[_DriverCall | Future[None] | None] = [*self._answers.values()]
        while not self._calls.empty():
            calls.append(self._calls.get())
        for call in calls:
            if isinstance(call, _DriverCall):
                call.answer.set_exception(error)
            elif call:
                call.set_exception(error)
