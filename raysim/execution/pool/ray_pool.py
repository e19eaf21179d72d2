"""Ray executor: a pool of resident actors on fractional GPUs or cores.

The pool lives for the whole run. A message travels once to each node, through the object store.
`execution.scheduling` decides each actor's next assignment. A lost actor costs the chunks that it
had not handed over: they go to free actors, and a new actor takes its place as soon as a node has
room for it.

Each of the workers' methods has one schedule, and items are added to it as long as the pool lives:
an evaluation runs while clients train.

In a pool of several nodes, each node with more than one worker has a foreman, which the pool treats
as a fast worker: the node returns one sum, and one message covers many clients. A single node has
no foreman, which would be one more process to start, and a detour for each message. When other
nodes join it, all actors are started again. If a node with a foreman is lost, its workers go to
other nodes one by one, without a foreman there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter, sleep
from typing import Any, get_args

import ray
from ray.exceptions import RayError
from ray.util.placement_group import get_current_placement_group

from raysim.errors import MachineError, SettingsError
from raysim.execution.base import Call, Executor, Item, unnoticed
from raysim.execution.cluster_health import draining_node_ids
from raysim.execution.messages import Directions, FailedItem, WorkerResult
from raysim.execution.pool.actor import ActorHandle, CallReceived, client_actors
from raysim.execution.pool.actors import Actors
from raysim.execution.pool.broadcasts import Broadcasts, Reference
from raysim.execution.pool.demand import Demand
from raysim.execution.pool.places import Places
from raysim.execution.pool.work import Work
from raysim.execution.resources import ActorPlan
from raysim.execution.scheduling.dealing import Speeds
from raysim.execution.scheduling.holding import AT_ONCE, hold_seconds
from raysim.execution.scheduling.line import latest_starts
from raysim.execution.scheduling.schedule import Schedule
from raysim.execution.worker import WorkerSpec
from raysim.process.exits import delay_signals
from raysim.storage.trace import Stopwatch

JOIN_SECONDS = 1.0
"""Seconds between checks for new nodes; one costs about 2 ms, a short round 100."""
SETTLE_SECONDS = 0.1
"""Seconds within which Ray places the next of several groups; each of 32 took 3 ms."""
DRAIN_SECONDS = 5.0
"""Seconds between queries for draining nodes; clouds give 30 or more seconds of notice."""
START_SECONDS = 60.0
"""Seconds that `describe` waits for all actors of a new pool; then one is enough."""


class ActorPool(Executor):
    """Executor that runs workers' calls on a pool of actors."""

    def __init__(
        self,
        spec: WorkerSpec,
        plan: Callable[[], ActorPlan],
        watch: Stopwatch,
        demand: Demand | None = None,
    ) -> None:
        """Start the actors.

        Args:
            spec: Specification of the actors' workers.
            plan: Returns the plan for the present nodes.
            watch: The driver's stopwatch.
            demand: The actors' placement groups, if nodes are started for them.
        """
        self._replan, self._watch, self._demand = plan, watch, demand
        self._engine = spec.settings.engine
        self._spec = [ray.put(spec)]
        self._schedules: dict[Call, Schedule] = {n: Schedule({}, Speeds()) for n in get_args(Call)}
        self._works = {name: Work(name, schedule) for name, schedule in self._schedules.items()}
        # A trial of a study has its own nodes: its placement group's.
        self._in_group = get_current_placement_group() is not None
        self._broadcasts = Broadcasts()
        # The driver's last cost of reading and adding a sum, by call: small for an evaluation.
        self._merge_seconds = dict.fromkeys(self._works, 0.0)
        self._described = False
        self._last_replan = self._last_drain_look = perf_counter()
        self._drained: set[str] = set()
        first = plan()
        while demand and not first.actors:  # the nodes were lost in the meantime
            demand.wait()
            first = plan()
        self._start(first)

    def _start(self, plan: ActorPlan) -> None:
        """Start the actors of a plan."""
        self._plan = plan
        needs = f"{plan.cpus:g} CPUs and {plan.gpus:g} GPUs"
        await_room = self._demand.await_room if self._demand else None
        self._actors = Actors(self._engine, needs, [*self._works.values()], await_room)
        self._make_anywhere = client_actors(self._engine, plan, chosen=not self._in_group)
        self._places = Places(self._actors, self._replan, self._demand, in_group=self._in_group)
        try:
            self._grow(plan)
        except BaseException:
            self._actors.close()
            raise

    def _start_anew(self, plan: ActorPlan) -> None:
        """Start all actors again; unfinished items of asynchronous rounds are repeated."""
        self._actors.close()
        self._schedules = {name: Schedule({}, Speeds()) for name in self._works}
        self._start(plan)
        for name, work in self._works.items():
            work.move_to(self._schedules[name])

    def describe(self) -> dict[str, Any]:
        """Return a description of the actors; the first call waits for them to start."""
        self._actors.wait_for_start(0.0 if self._described else START_SECONDS)
        self._described = True
        return {
            "backend": "ray",
            "cpus_per_actor": self._plan.cpus,
            "gpus_per_actor": self._plan.gpus,
            "actors": [about for handle in self._actors.handles for about in handle.workers],
        }

    def submit(
        self,
        call: Call,
        message: Any,
        costs: Mapping[Item, float],
        failed_at: Mapping[Item, str] | None = None,
        due: Mapping[Item, float] | None = None,
    ) -> None:
        """Let the actors process items.

        Raises:
            MachineError: the cluster is lost, or no actor can be started any more.
        """
        hold = (
            hold_seconds(self._merge_seconds[call], len(self._actors.handles))
            if due is None
            else AT_ONCE
        )
        workers = sum(handle.width for handle in self._actors.handles)
        order = latest_starts(due, costs, workers) if due and not failed_at else None
        failed_at = failed_at or {}
        with self._watch("broadcast"):
            self._actors.cluster.check_store()
            put = self._put(message, Directions(costs, failed_at, hold, order))
        with self._watch("placement"):
            self._use_new_nodes()
            barred = self._actors.renew_failing(failed_at)
            self._works[call].messages |= dict.fromkeys(costs, put)
            self._schedules[call].hold_seconds = hold
            self._schedules[call].add(costs, barred, order)
            self._actors.leave(self._draining(), self._schedules.values())
            self._actors.begin()

    def results(
        self, call: Call, on_done: Callable[[int], None] = unnoticed
    ) -> Iterator[WorkerResult | FailedItem]:
        """Yield the actors' results until all items are done.

        Raises:
            MachineError: the cluster is lost, or no actor can be started any more.
        """
        work, results = self._works[call], self._works[call].results
        while results or not self._schedules[call].finished:
            if not results:
                self._serve()
                on_done(self._schedules[call].done)
                continue
            begun = perf_counter()
            while results:
                yield results.popleft()
            self._merge_seconds[call] = work.reading + perf_counter() - begun

    def _serve(self) -> None:
        """Wait for an event, and hand out due assignments."""
        self._actors.leave(self._draining(), self._schedules.values())
        event = self._actors.next_event()
        if event is not None and not isinstance(event, CallReceived):
            with self._watch("placement"):
                self._actors.apply(event)

    def close(self) -> None:
        """Stop the actors."""
        with delay_signals():
            self._actors.close()
            if self._demand:
                self._demand.close()

    def _put(self, message: Any, directions: Directions) -> tuple[Reference, ...]:
        """Put a message and the directions to present or later foremen into the object store."""
        try:
            return self._broadcasts.put(message), ray.put(directions)
        except RayError as error:
            raise MachineError(f"Ray's object store cannot hold a broadcast: {error}") from error

    def _use_new_nodes(self) -> None:
        """Add actors on nodes that have joined since the last check, if more are wanted."""
        short = self._places.workers < self._plan.actors
        grows = short or self._demand or self._engine.actors == "auto"
        if not grows or perf_counter() - self._last_replan < JOIN_SECONDS:
            return
        self._last_replan = perf_counter()
        if self._actors.cluster.check():
            try:
                plan = self._settled_plan()
            except SettingsError:
                return  # the remaining nodes have no room; lost ones may return
            if self._places.lack_foreman(plan):
                self._start_anew(plan)
            else:
                self._grow(plan)

    def _settled_plan(self) -> ActorPlan:
        """Return a plan; if nodes are started for actors, once Ray has placed all that have room.

        Ray places groups one after another, but a foreman needs all workers of its node together.
        """
        plan, before = self._replan(), None
        while self._demand and plan.actors > self._places.workers and plan != before:
            sleep(SETTLE_SECONDS)
            before, plan = plan, self._replan()
        return plan

    def _draining(self) -> set[str]:
        """Return the draining nodes, as of the last query."""
        if perf_counter() - self._last_drain_look >= DRAIN_SECONDS:
            self._last_drain_look = perf_counter()
            if self._actors.cluster.check():
                self._drained = draining_node_ids()
        return self._drained

    def _grow(self, plan: ActorPlan) -> None:
        """Add actors up to a plan: a foreman for the workers of a node, or the workers."""
        several = self._places.have_foremen(plan) and max(plan.by_node.values(), default=0) > 1
        for place in self._places.missing(plan) if self._demand or several else ():
            self._add(self._places.add(place), place.workers)
        for _ in range(0 if self._demand else plan.actors - self._places.workers):
            self._add(self._make_anywhere)

    def _add(self, make: Callable[[], Any | None], width: int = 1) -> None:
        with delay_signals():  # an actor unknown to the pool would keep its cores
            for schedule in self._schedules.values():
                schedule.join(width)
            self._actors.add(ActorHandle(make, self._spec, width))
