"""The ray executor: a pool of resident actors on fractional GPUs or cores.

The pool lives for the whole run. What a call shares travels once to each node, through the object
store. What an actor is handed next is decided in `schedule.py`. A lost actor costs the chunks that
it had not handed over: they go to whoever is free, and a new actor takes its place as soon as a
node has room for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, get_args

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import get_current_placement_group

from raysim.core.errors import MachineError, RaysimError, SettingsError
from raysim.execution.base import Call, FailedItem, Item
from raysim.execution.cluster_health import ClusterHealth
from raysim.execution.messages import WorkerResult
from raysim.execution.module_path import with_driver_path
from raysim.execution.pool.actor import (
    ActorHandle,
    ActorLost,
    ActorStarted,
    CallReturned,
    ClientActor,
    Event,
    Reference,
)
from raysim.execution.pool.dealing import Speeds
from raysim.execution.pool.schedule import IN_FLIGHT, Schedule
from raysim.execution.resources import ActorPlan
from raysim.execution.worker import WorkerSpec
from raysim.storage.trace import Stopwatch

MAX_DEATHS = 3
"""Deaths of actors over one client, or in a row while one starts, after which it has failed."""
WATCH_SECONDS = 5.0
"""Seconds between health checks of cluster and actors."""
JOIN_SECONDS = 1.0
"""Seconds between checks for new nodes; one costs about 2 ms, a short round 100."""
START_SECONDS = 60.0
"""Seconds that `describe` waits for all actors of a new pool; one is enough to continue."""
NO_ACTOR_SECONDS = 300.0
"""Seconds without any actor after which a run stops."""


@dataclass(frozen=True)
class _PendingCall:
    """One call of `map`: the worker's method, the message, and the schedule of the items."""

    call: Call
    message: list[Reference]
    schedule: Schedule


class ActorPool:
    """Runs workers' calls on a pool of actors."""

    def __init__(self, spec: WorkerSpec, plan: Callable[[], ActorPlan], watch: Stopwatch) -> None:
        """Start the actors.

        Args:
            spec: How they build their workers.
            plan: Returns how many there may be on the nodes that there are now.
            watch: The driver's.
        """
        self._replan, self._watch = plan, watch
        self._plan = plan()
        self._engine = spec.settings.engine
        self._cluster = ClusterHealth()
        self._spec = [ray.put(spec)]
        # A trial of a study has its own nodes: those of the placement group that it runs in.
        self._actor = ray.remote(
            num_cpus=self._plan.cpus,
            num_gpus=self._plan.gpus,
            scheduling_strategy=None if get_current_placement_group() else "SPREAD",
        )(with_driver_path(ClientActor))
        self._handles: list[ActorHandle] = []
        self._oldest: dict[Reference, int] = {}
        self._speeds = {name: Speeds(0) for name in get_args(Call)}
        self._described = False
        self._last_check = self._last_placed = self._last_replan = perf_counter()
        self._grow(self._plan.actors)

    def describe(self) -> dict[str, Any]:
        """Return where work runs; the first time it waits for the actors to start."""
        end = 0.0 if self._described else perf_counter() + START_SECONDS
        while not all(self._started()) and (perf_counter() < end or not any(self._started())):
            self._wait()
        self._described = True
        return {
            "backend": "ray",
            "cpus_per_actor": self._plan.cpus,
            "gpus_per_actor": self._plan.gpus,
            "actors": [handle.about for handle in self._handles if handle.started],
        }

    def map(
        self,
        call: Call,
        message: Any,
        costs: Mapping[Item, float],
        on_done: Callable[[int], None],
        failed_at: Mapping[Item, str] | None = None,
    ) -> Iterator[WorkerResult | FailedItem]:
        """Have the actors work on all items; yield what each hands over.

        Raises:
            MachineError: the cluster is gone, or no actor can be had any more.
        """
        with self._watch("broadcast"):
            self._cluster.check_store()
            put = [_put(message)]
        with self._watch("placement"):
            self._use_new_nodes()
            barred = self._renew_failing(failed_at or {})
            work = _PendingCall(call, put, Schedule(costs, self._speeds[call], barred))
            self._assign(range(len(self._handles)), work)
        while not work.schedule.finished:
            event = (self._wait() if self._oldest else None) or self._end_stall()
            if event is None:
                continue
            with self._watch("placement"):
                result = self._apply(event, work.schedule)
                # What a lost actor was to do may be for anyone who has nothing to do.
                everyone = isinstance(event, ActorLost) and event.had_started
                self._assign(range(len(self._handles)) if everyone else [event.actor], work)
            on_done(work.schedule.done)
            if result is not None:
                yield result

    def close(self) -> None:
        """Stop the actors."""
        for handle in self._handles:
            handle.close()
        self._cluster.close()

    def _started(self) -> list[bool]:
        return [handle.started for handle in self._handles]

    def _use_new_nodes(self) -> None:
        """Add the actors that nodes have room for which joined since the last look."""
        if self._engine.actors != "auto" or perf_counter() - self._last_replan < JOIN_SECONDS:
            return
        self._last_replan = perf_counter()
        if self._cluster.check():
            try:
                self._grow(self._replan().actors)
            except SettingsError:
                return  # the nodes that are left have room for none; those lost may come again

    def _grow(self, actors: int) -> None:
        for worker in range(len(self._handles), actors):
            for speeds in self._speeds.values():
                speeds.join()
            self._handles.append(ActorHandle(self._actor.remote, self._spec))
            self._track(worker)

    def _renew_failing(self, failed_at: Mapping[Item, str]) -> dict[Item, int]:
        """Renew actors that seem to be the cause of failures; return who else must not have what.

        Args:
            failed_at: Items that failed, and the worker.
        """
        for actor, handle in enumerate(self._handles):
            alone = len(self._handles) == 1 and handle.worker in failed_at.values()
            if failed_at and (handle.failing or alone):
                self._replace_actor(actor, "clients failed at it", suspicious=False)
        numbers = {handle.worker: n for n, handle in enumerate(self._handles) if handle.about}
        return {item: numbers[at] for item, at in failed_at.items() if at in numbers}

    def _end_stall(self) -> ActorLost | None:
        """Renew an idle actor where nobody works on what is left: it must not have that itself."""
        started = [actor for actor, handle in enumerate(self._handles) if handle.started]
        if not started or any(self._handles[actor].calls for actor in started):
            return None
        return self._replace_actor(started[0], "clients failed at it", suspicious=False)

    def _assign(self, actors: Iterable[int], work: _PendingCall) -> None:
        """Hand actors that have started what is due: a chunk to each, then the next to each."""
        for actor in [*actors] * IN_FLIGHT:
            handle = self._handles[actor]
            due = work.schedule.next(actor) if handle.started else None
            if due is not None:
                handle.call(work.call, work.message, *due)
                self._track(actor)

    def _apply(self, event: Event, schedule: Schedule) -> WorkerResult | FailedItem | None:
        """Enter an event in the schedule; return what an actor handed over, or an item given up."""
        if isinstance(event, CallReturned):
            schedule.returned(event.actor, event.seconds)
            if event.result:
                self._handles[event.actor].failing = event.result.failing
            return event.result
        if isinstance(event, ActorLost) and event.had_started:
            items, _ = schedule.lost(event.actor, event.suspicious)
            if items and schedule.deaths[items[0]] >= MAX_DEATHS:
                schedule.give_up(items[0])
                return FailedItem(items[0], f"its worker died {MAX_DEATHS} times: {event.cause}")
        return None

    def _track(self, worker: int) -> None:
        """Wait for the oldest call of an actor only: they return in order."""
        if calls := self._handles[worker].calls:
            self._oldest[calls[0][0]] = worker

    def _wait(self) -> Event | None:
        """Wait for a call to return; return None where nothing happened for a while.

        Among calls that have returned, the one that was waited for longest is first: no actor is
        left waiting for the driver.
        """
        limit = self._engine.client_timeout or WATCH_SECONDS
        pause = min(limit, WATCH_SECONDS)
        self._cluster.check_store()
        done, _ = ray.wait(list(self._oldest), num_returns=1, timeout=pause)
        if perf_counter() - self._last_check >= pause:
            late = self._check_health()
            if late is not None:
                cause = f"no answer within engine.client_timeout={limit:g} s a client"
                return self._replace_actor(late, cause)
        return self._receive(self._oldest[done[0]], done[0]) if done else None

    def _receive(self, actor: int, reference: Reference) -> Event:
        """Return what became of an actor's oldest call."""
        self._cluster.check_store()
        handle = self._handles[actor]
        try:
            outcome = ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, RaysimError):
                raise error.cause from error
            return self._replace_actor(actor, _last_line(error))
        except RayError as error:
            node_lost = self._cluster.lost(handle.about.get("node"))
            return self._replace_actor(actor, _last_line(error), suspicious=not node_lost)
        del self._oldest[reference]
        handle.returned()
        self._track(actor)
        if handle.started:
            return CallReturned(actor, *outcome)
        handle.note_start(outcome)
        return ActorStarted(actor)

    def _replace_actor(self, actor: int, cause: str, suspicious: bool = True) -> ActorLost:
        """Replace a lost actor; return the loss.

        Raises:
            MachineError: actors die again and again while they start.
        """
        handle = self._handles[actor]
        lost = ActorLost(actor, cause, suspicious, had_started=handle.started)
        if not lost.had_started and suspicious:
            handle.failures += 1
            if handle.failures >= MAX_DEATHS:
                self._cluster.check()
                raise MachineError(
                    f"an actor died {MAX_DEATHS} times in a row while it started: {cause}"
                )
        self._oldest = {call: at for call, at in self._oldest.items() if at != actor}
        handle.renew()
        self._track(actor)
        return lost

    def _check_health(self) -> int | None:
        """Look at the cluster and the actors; return the number of one that is overdue.

        Raises:
            MachineError: the cluster is gone, or no actor was placed for too long.
        """
        self._last_check = perf_counter()
        self._cluster.check()
        if any(handle.about for handle in self._handles):
            self._last_placed = self._last_check
        elif self._last_check - self._last_placed > NO_ACTOR_SECONDS:
            raise MachineError(
                f"no actor is left, and for {NO_ACTOR_SECONDS:g} seconds no node had room for one"
                f" of {self._plan.cpus:g} CPUs and {self._plan.gpus:g} GPUs: start nodes, or wait"
                " until others give theirs back"
            )
        limit = self._engine.client_timeout
        late = (w for w, handle in enumerate(self._handles) if limit and handle.overdue(limit))
        return next(late, None)


def _put(message: Any) -> Reference:
    try:
        return ray.put(message)
    except RayError as error:
        raise MachineError(f"Ray's object store cannot hold a broadcast: {error}") from error


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else repr(error)
