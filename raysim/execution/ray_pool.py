"""The ray executor: a pool of resident actors on fractional GPUs or cores.

The pool lives for the whole run. What a call shares travels once to each node, through the object
store. What an actor is handed next is decided in `placement.py`. A lost actor costs the chunks that
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
from raysim.execution.actor import ActorHandle, ClientActor, Reference
from raysim.execution.base import Call, FailedItem, Item
from raysim.execution.cluster_health import ClusterHealth
from raysim.execution.module_path import with_driver_path
from raysim.execution.resources import ActorPlan
from raysim.execution.schedule import IN_FLIGHT, Schedule, Speeds
from raysim.execution.worker import WorkerSpec
from raysim.storage.trace import Stopwatch

MAX_DEATHS = 3
"""Actors that die over one client, or in a row while one starts, before that is given up."""
WATCH_SECONDS = 5.0
"""Between two looks at the cluster, and at who is overdue."""
JOIN_SECONDS = 1.0
"""Between two looks for nodes that have joined; one costs about 2 ms, a short round 100."""
START_SECONDS = 60.0
"""How long `describe` waits for all actors of a new pool; one is enough to go on."""
NOBODY_SECONDS = 300.0
"""How long a run goes on without any actor before it stops."""


@dataclass(frozen=True)
class ActorLost:
    """What becomes of a call whose actor was lost.

    Attributes:
        cause: Why, in one line.
        suspicious: Whether what it was working on may have been the cause.
    """

    cause: str
    suspicious: bool = True


@dataclass(frozen=True)
class _Work:
    """One call of `map`: what is called, what is shared, and who does what."""

    call: Call
    shared: list[Reference]
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
        self._places: list[ActorHandle] = []
        self._oldest: dict[Reference, int] = {}
        self._speeds = {name: Speeds(0) for name in get_args(Call)}
        self._described = False
        self._looked = self._seen = self._counted = perf_counter()
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
            "actors": [place.about for place in self._places if place.started],
        }

    def map(
        self, call: Call, shared: Any, costs: Mapping[Item, float], on_done: Callable[[int], None]
    ) -> Iterator[Any]:
        """Have the actors work on all items; yield what each hands over.

        Raises:
            MachineError: the cluster is gone, or no actor can be had any more.
        """
        with self._watch("broadcast"):
            self._cluster.check_store()
            put = [_put(shared)]
        with self._watch("placement"):
            self._use_new_nodes()
            work = _Work(call, put, Schedule(costs, self._speeds[call]))
            self._fill(range(len(self._places)), work)
        while not work.schedule.finished:
            worker, outcome = self._wait()
            if worker is None:
                continue
            with self._watch("placement"):
                result = self._note(worker, work, outcome)
                # What a lost actor was to do may be for anyone who has nothing to do.
                everyone = isinstance(outcome, ActorLost)
                self._fill(range(len(self._places)) if everyone else [worker], work)
            on_done(work.schedule.done)
            if result is not None:
                yield result

    def close(self) -> None:
        """Stop the actors."""
        for place in self._places:
            place.close()
        self._cluster.close()

    def _started(self) -> list[bool]:
        return [place.started for place in self._places]

    def _use_new_nodes(self) -> None:
        """Add the actors that nodes have room for which joined since the last look."""
        if self._engine.actors != "auto" or perf_counter() - self._counted < JOIN_SECONDS:
            return
        self._counted = perf_counter()
        if self._cluster.check():
            try:
                self._grow(self._replan().actors)
            except SettingsError:
                return  # the nodes that are left have room for none; those lost may come again

    def _grow(self, actors: int) -> None:
        for worker in range(len(self._places), actors):
            for speeds in self._speeds.values():
                speeds.join()
            self._places.append(ActorHandle(self._actor.remote, self._spec, self._plan.gpus))
            self._await(worker)

    def _fill(self, workers: Iterable[int], work: _Work) -> None:
        """Hand actors that have started what is due: a chunk to each, then the next to each."""
        for worker in [*workers] * IN_FLIGHT:
            place = self._places[worker]
            due = work.schedule.next(worker) if place.started else None
            if due is not None:
                place.call(work.call, work.shared, *due)
                self._await(worker)

    def _note(self, worker: int, work: _Work, outcome: Any) -> Any:
        """Note what became of an actor's oldest call; return what it handed over, if anything."""
        if outcome is None:  # it is starting
            return None
        if isinstance(outcome, ActorLost):
            return self._take_back(worker, work.schedule, outcome)
        seconds, result = outcome
        work.schedule.returned(worker, seconds)
        return result

    def _take_back(self, worker: int, schedule: Schedule, lost: ActorLost) -> FailedItem | None:
        """Take back what a lost actor had not handed over; give up what none survives."""
        items, _ = schedule.lost(worker, lost.suspicious)
        if not items or schedule.deaths[items[0]] < MAX_DEATHS:
            return None
        schedule.give_up(worker, items[0])
        return FailedItem(items[0], f"its worker died {MAX_DEATHS} times: {lost.cause}")

    def _await(self, worker: int) -> None:
        """Wait for the oldest call of an actor only: they return in order."""
        if calls := self._places[worker].calls:
            self._oldest[calls[0][0]] = worker

    def _wait(self) -> tuple[int | None, Any]:
        """Wait for a call to return; return its actor's number and the outcome, None for a start.

        Among calls that have returned, the one that was waited for longest is first: nobody is left
        waiting for the driver. The number is None where there is nothing to hear for a while.
        """
        limit = self._engine.client_timeout or WATCH_SECONDS
        pause = min(limit, WATCH_SECONDS)
        self._cluster.check_store()
        done, _ = ray.wait(list(self._oldest), num_returns=1, timeout=pause)
        if perf_counter() - self._looked >= pause:
            late = self._look()
            if late is not None:
                cause = f"no answer within engine.client_timeout={limit:g} s a client"
                return late, self._renew(late, ActorLost(cause))
        if not done:
            return None, None
        worker = self._oldest[done[0]]
        outcome = self._outcome(worker, done[0])
        if isinstance(outcome, ActorLost):
            return worker, self._renew(worker, outcome)
        del self._oldest[done[0]]
        place = self._places[worker]
        place.returned()
        self._await(worker)
        if place.started:
            return worker, outcome
        place.note_start(outcome)
        return worker, None

    def _outcome(self, worker: int, reference: Reference) -> Any:
        """Return what a call returned, or how its actor was lost."""
        self._cluster.check_store()
        try:
            return ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, RaysimError):
                raise error.cause from error
            if not isinstance(error.cause, MemoryError | RayError):
                raise
            return ActorLost(_last_line(error))
        except RayError as error:
            node = self._places[worker].about.get("node")
            return ActorLost(_last_line(error), suspicious=not self._cluster.lost(node))

    def _renew(self, worker: int, lost: ActorLost) -> ActorLost | None:
        """Put a new actor in the place of a lost one; return the loss where work was lost.

        Raises:
            MachineError: actors die again and again while they start.
        """
        place = self._places[worker]
        had_started = place.started
        if not had_started and lost.suspicious:
            place.failures += 1
            if place.failures >= MAX_DEATHS:
                self._cluster.check()
                raise MachineError(
                    f"an actor died {MAX_DEATHS} times in a row while it started: {lost.cause}"
                )
        self._oldest = {call: at for call, at in self._oldest.items() if at != worker}
        place.renew()
        self._await(worker)
        return lost if had_started else None

    def _look(self) -> int | None:
        """Look at the cluster and the actors; return the number of one that is overdue.

        Raises:
            MachineError: the cluster is gone, or no actor was placed for too long.
        """
        self._looked = perf_counter()
        self._cluster.check()
        if any(place.about for place in self._places):
            self._seen = self._looked
        elif self._looked - self._seen > NOBODY_SECONDS:
            raise MachineError(
                f"no actor is left, and for {NOBODY_SECONDS:g} seconds no node had room for one of"
                f" {self._plan.cpus:g} CPUs and {self._plan.gpus:g} GPUs: start nodes, or wait"
                " until others give theirs back"
            )
        limit = self._engine.client_timeout
        late = (w for w, place in enumerate(self._places) if limit and place.overdue(limit))
        return next(late, None)


def _put(shared: Any) -> Reference:
    try:
        return ray.put(shared)
    except RayError as error:
        raise MachineError(f"Ray's object store cannot hold a broadcast: {error}") from error


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else repr(error)
