"""Actors of a pool or of a foreman: assignment of items, waiting, and replacement of lost ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import perf_counter, sleep
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from raysim.config import EngineSettings
from raysim.errors import MachineError, RaysimError, SettingsError
from raysim.execution.base import Item
from raysim.execution.cluster_health import ClusterHealth, NodeLostError
from raysim.execution.messages import FailedItem
from raysim.execution.pool.actor import (
    ActorEvent,
    ActorHandle,
    ActorLost,
    ActorStarted,
    CallReceived,
    CallReturned,
    Event,
)
from raysim.execution.pool.broadcasts import Reference
from raysim.execution.pool.work import Work
from raysim.execution.scheduling.schedule import IN_FLIGHT, Schedule

MAX_DEATHS = 3
"""Deaths of actors with one client, or in a row during starts, that count as a failure."""
WATCH_SECONDS = 5.0
"""Seconds between health checks of cluster and actors."""
NO_ACTOR_SECONDS = 300.0
"""Seconds without any actor after which a run stops."""
VACANT_SECONDS = 0.5
"""Seconds of a pause while there is no actor to wait for, as no node has room for one."""


class NoActorError(MachineError):
    """Error of a pool: no node has had room for an actor for long."""


class Actors:
    """Resident actors, numbered in the order of their creation.

    Attributes:
        handles: The actors.
    """

    def __init__(
        self,
        engine: EngineSettings,
        needs: str,
        works: Sequence[Work],
        await_room: Callable[[], None] | None = None,
    ) -> None:
        """Watch the cluster.

        Args:
            engine: The engine's settings.
            needs: Resources that each actor reserves, for an error.
            works: Items of each of the workers' methods.
            await_room: Called repeatedly while no node has room for any actor, if nodes are started
                for them; None makes it an error after a while.
        """
        self.handles: list[ActorHandle] = []
        self._works = works
        self.cluster = ClusterHealth()
        self._engine, self._needs, self._await_room = engine, needs, await_room
        self._oldest: dict[Reference, int] = {}
        self._last_check = self._last_placed = perf_counter()

    def add(self, handle: ActorHandle) -> None:
        """Add an actor."""
        self.handles.append(handle)
        self._track(len(self.handles) - 1)

    def close(self) -> None:
        """Stop the actors."""
        for handle in self.handles:
            handle.close()
        self.cluster.close()

    def wait_for_start(self, seconds: float) -> None:
        """Wait until all actors have started; after `seconds`, one is enough."""
        end = perf_counter() + seconds
        while not all(self._started()) and (perf_counter() < end or not any(self._started())):
            event = self.wait()
            if event is not None and not isinstance(event, CallReceived):
                self.apply(event)  # other actors may have items already

    def _started(self) -> list[bool]:
        return [handle.started for handle in self.handles]

    def renew_failing(self, failed_at: Mapping[Item, str]) -> dict[Item, int]:
        """Renew the apparent causes of failures; return the excluded worker of each other item.

        Args:
            failed_at: The worker of each item that has failed.
        """
        for actor, handle in enumerate(self.handles):
            alone = len(self.handles) == 1 and handle.worker in failed_at.values()
            if failed_at and (handle.failing or alone):
                self.apply(self._replace(actor, "clients failed at it", suspicious=False))
        numbers = {handle.worker: n for n, handle in enumerate(self.handles) if handle.about}
        return {item: numbers[at] for item, at in failed_at.items() if at in numbers}

    def leave(self, nodes: Collection[str], schedules: Iterable[Schedule]) -> None:
        """Let actors on draining nodes hand over, and then replace them."""
        if not nodes:
            return
        for actor, handle in enumerate(self.handles):
            if handle.about.get("node") not in nodes:
                continue
            if not handle.started or all([schedule.leave(actor) for schedule in schedules]):
                self.apply(self._replace(actor, "its node is drained", suspicious=False))
            else:
                handle.leave()
                self._assign([actor])

    def begin(self) -> None:
        """Hand due assignments to all started actors."""
        self._assign(range(len(self.handles)))

    def next_event(self, wakeup: Reference | None = None) -> Event | None:
        """Wait for an event; renew an idle actor if no actor may have the remaining items.

        Args:
            wakeup: Reference to wait for in addition to the actors.
        """
        event = None
        if self._oldest or wakeup is not None or not any(self._started()):
            event = self.wait(wakeup)
        if event is None and any(work.schedule.queued for work in self._works):
            return self._end_stall()
        return event

    def apply(self, event: ActorEvent) -> None:
        """Record an event in the schedules, and hand out due assignments."""
        for work in self._works:
            self._enter(event, work)
        # The items of a lost actor may go to any idle actor.
        everyone = isinstance(event, ActorLost) and event.had_started
        self._assign(range(len(self.handles)) if everyone else [event.actor], wake=True)

    def _end_stall(self) -> ActorLost | None:
        """Renew an idle actor if no actor may have the remaining items, not even this one."""
        started = [actor for actor, handle in enumerate(self.handles) if handle.started]
        if not started or any(self.handles[actor].calls for actor in started):
            return None
        return self._replace(started[0], "clients failed at it", suspicious=False)

    def _assign(self, actors: Iterable[int], *, wake: bool = False) -> None:
        """Hand due assignments to started actors: one to each, then the next to each."""
        for work in self._works:
            woken = work.schedule.woken() if wake else ()
            due = []
            for actor in [*actors, *woken] * IN_FLIGHT:
                started = self.handles[actor].started
                assignment = work.schedule.next(actor) if started else None
                if assignment is not None:
                    due.append((actor, assignment))
            for actor, assignment in work.schedule.settled(due):
                parts = work.parts(assignment.items)
                self.handles[actor].call(work.call, parts, assignment.hand_over)
                self._track(actor)

    def _enter(self, event: ActorEvent, work: Work) -> None:
        """Record an event in a schedule, with its result or an item that is given up."""
        schedule = work.schedule
        if isinstance(event, CallReturned) and event.call == work.call:
            result: Any = event.result
            handle = self.handles[event.actor]
            parts: tuple[Any, ...] = ()
            if handle.width > 1:
                parts = (result.items, result.given_back) if result else ((),)
            work.forget(schedule.returned(event.actor, event.seconds, *parts))
            if result:
                work.results += handle.note_result(result)
                work.reading = event.reading
        if isinstance(event, ActorLost) and event.had_started:
            suspicious = event.suspicious and event.call == work.call
            items, _ = schedule.lost(event.actor, suspicious)
            if items and schedule.deaths[items[0]] >= MAX_DEATHS:
                schedule.give_up(items[0])
                work.forget(items[:1])
                cause = f"its worker died {MAX_DEATHS} times: {event.cause}"
                work.results.append(FailedItem(items[0], cause))

    def _track(self, worker: int) -> None:
        """Wait only for the oldest call of an actor, as calls return in order."""
        if calls := self.handles[worker].calls:
            self._oldest[calls[0][0]] = worker

    def wait(self, wakeup: Reference | None = None) -> Event | None:
        """Wait for a call to return; return None if none did for a while.

        Among returned calls, the one with the longest wait is first, so that no actor keeps waiting
        for the driver.
        """
        limit = self._engine.client_timeout or WATCH_SECONDS
        pause = min(limit, WATCH_SECONDS)
        self.cluster.check_store()
        waited = [*self._oldest, *([] if wakeup is None else [wakeup])]
        done: list[Reference] = []
        if waited:
            done, _ = ray.wait(waited, num_returns=1, timeout=pause)
        else:
            sleep(VACANT_SECONDS)
        if perf_counter() - self._last_check >= pause:
            late = self._check_health()
            if late is not None:
                return self._replace(*late)
        if not done:
            return None
        return (
            CallReceived() if done[0] == wakeup else self._receive(self._oldest[done[0]], done[0])
        )

    def _receive(self, actor: int, reference: Reference) -> Event:
        """Return the outcome of an actor's oldest call."""
        self.cluster.check_store()
        handle, begun = self.handles[actor], perf_counter()
        try:
            outcome = ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, NodeLostError):  # a foreman raises it before Ray ends it
                return self._replace(actor, str(error.cause), suspicious=False)
            if isinstance(error.cause, NoActorError):  # a foreman's; other nodes may have room
                handle.without_room = True
                if not all(other.without_room for other in self.handles):
                    return self._replace(actor, str(error.cause), suspicious=False)
            if isinstance(error.cause, RaysimError):
                raise error.cause from error
            cause = last_line(error)  # Ray keeps no other trace of an error while unpickling
            if cause.startswith(("ModuleNotFoundError:", "ImportError:")) and not handle.started:
                raise SettingsError(
                    f"engine.backend=ray: actors cannot import a module of the task: {cause};"
                    " install it, put its folder on PYTHONPATH, or choose inline"
                ) from error
            return self._replace(actor, cause)
        except RayError as error:
            node_lost = self.cluster.lost(handle.about.get("node"))
            return self._replace(actor, last_line(error), suspicious=not node_lost)
        reading = perf_counter() - begun
        del self._oldest[reference]
        call = handle.returned()
        self._track(actor)
        if call is not None:
            return CallReturned(actor, call, outcome[0], outcome[1], reading)
        handle.note_start(outcome)
        return ActorStarted(actor)

    def _replace(self, actor: int, cause: str, suspicious: bool = True) -> ActorLost:
        """Replace a lost actor; return the loss.

        A foreman trains no client, so no client is the cause of its death.

        Raises:
            MachineError: actors die repeatedly while they start, or foremen at any time.
        """
        handle = self.handles[actor]
        foreman = handle.width > 1
        call = handle.calls[0][2] if handle.calls else None
        lost = ActorLost(actor, cause, call, suspicious and not foreman, handle.started)
        # A foreman that was never placed has lost its node already.
        if suspicious and (bool(handle.about) if foreman else not lost.had_started):
            handle.failures += 1
            if handle.failures >= MAX_DEATHS:
                self.cluster.check()
                who, when = ("a foreman", "") if foreman else ("an actor", " while it started")
                raise MachineError(f"{who} died {MAX_DEATHS} times in a row{when}: {cause}")
        self._oldest = {call: at for call, at in self._oldest.items() if at != actor}
        handle.renew()
        self._track(actor)
        return lost

    def _check_health(self) -> tuple[int, str] | None:
        """Check the cluster and the actors; return the number of an overdue actor, and why.

        Raises:
            MachineError: the cluster is lost, or no actor was placed for too long.
        """
        self._last_check = perf_counter()
        answers = self.cluster.check()
        for actor, handle in enumerate(self.handles):
            if handle.vacant:
                handle.renew()
                self._track(actor)
        if any(handle.placed for handle in self.handles):
            self._last_placed = self._last_check
        elif self._await_room:
            if answers:
                self._await_room()
        elif self._last_check - self._last_placed > NO_ACTOR_SECONDS:
            raise NoActorError(
                f"no actor is left, and for {NO_ACTOR_SECONDS:g} seconds no node had room for one"
                f" of {self._needs}: start nodes, or wait until others give theirs back"
            )
        limit = self._engine.client_timeout
        causes = (handle.overdue(limit) if limit else None for handle in self.handles)
        return next(((actor, cause) for actor, cause in enumerate(causes) if cause), None)


def last_line(error: Exception) -> str:
    """Return the last line of an error of Ray, which names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else repr(error)
