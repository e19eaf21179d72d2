"""An actor of the pool: a worker in a process of its own, the driver's handle, and its events."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import ray

from raysim.config import EngineSettings
from raysim.execution.base import Call, Item
from raysim.execution.messages import FailedItem, ForemanResult, WorkerResult
from raysim.execution.module_path import with_driver_path
from raysim.execution.pool.broadcasts import Reference, fetch
from raysim.execution.process import configure, keep_freed_memory
from raysim.execution.resources import ActorPlan
from raysim.execution.worker import Worker

SILENT_SECONDS = 60.0
"""Seconds without an answer after which a foreman is lost, where there is a limit of a client's."""


@dataclass(frozen=True)
class ActorStarted:
    """Event: an actor was placed, or has built its worker."""

    actor: int


@dataclass(frozen=True)
class CallReturned:
    """Event: the oldest call of an actor has returned.

    Attributes:
        actor: The actor's number.
        call: The worker's method.
        seconds: Seconds that the call took there.
        result: What the worker handed over, if it was asked to, or a foreman.
        reading: Seconds that reading it took, which joins the parts of a foreman's sum.
    """

    actor: int
    call: Call
    seconds: float
    result: WorkerResult | ForemanResult | None
    reading: float


@dataclass(frozen=True)
class ActorLost:
    """Event: an actor was lost, and a new one takes its place.

    Attributes:
        actor: The actor's number.
        cause: One line.
        call: The worker's method in which it was, if it was in one.
        suspicious: Whether the clients that it was working on may be the cause.
        had_started: Whether it had built its worker.
    """

    actor: int
    cause: str
    call: Call | None
    suspicious: bool = True
    had_started: bool = True


@dataclass(frozen=True)
class OrderReceived:
    """Event: a foreman has orders of the driver."""


Part = tuple[tuple[Reference, ...], list[Item]]
"""A message, with what foremen are told beside it, and items that are worked on with it."""
ActorEvent = ActorStarted | CallReturned | ActorLost
Event = ActorEvent | OrderReceived


class ClientActor:
    """A worker in a process of its own, pinned to its fraction of a GPU or to cores."""

    def location(self) -> dict[str, Any]:
        """Return process, host, node and GPUs of this actor."""
        context = ray.get_runtime_context()
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "node": context.get_node_id(),
            "gpus": context.get_accelerator_ids().get("GPU", []),
        }

    def start(self, spec: list[Reference]) -> dict[str, Any]:
        """Build the worker; return its device."""
        built = ray.get(spec[0])
        configure(built.settings.engine)
        keep_freed_memory()
        self._worker = Worker(built)
        self._message: tuple[Reference, Any] | None = None
        return self._worker.about()

    def call(self, name: Call, parts: list[Part], hand_over: bool) -> Any:
        """Work on items; return the seconds taken and, where asked, the worker's result."""
        begun = perf_counter()
        for (message, *_), items in parts:
            if self._message is None or self._message[0] != message:
                with self._worker.watch("broadcast"):
                    self._message = (message, fetch(message))
            getattr(self._worker, name)(self._message[1], items)
        return perf_counter() - begun, self._worker.take(name) if hand_over else None


def client_actors(engine: EngineSettings, plan: ActorPlan, *, chosen: bool) -> Callable[[], Any]:
    """Return what makes an actor of a plan on any node.

    Args:
        engine: The engine's settings.
        plan: The plan.
        chosen: Whether the settings choose among the nodes; else a placement group has.
    """
    options: dict[str, Any] = {
        "scheduling_strategy": "SPREAD",
        "accelerator_type": engine.accelerator_type,
        "label_selector": dict(engine.node_labels) or None,
    }
    reserved: dict[str, Any] = {"num_cpus": plan.cpus, "num_gpus": plan.gpus}
    kind: Any = ray.remote(**reserved, **(options if chosen else {}))(with_driver_path(ClientActor))
    make: Callable[[], Any] = kind.remote
    return make


class ActorHandle:
    """One actor as the driver, or its foreman, sees it; a lost one is replaced.

    Ray places an actor when a node has room for it; the actor builds its worker before it is given
    work. Its calls return in the order in which they were made.

    Attributes:
        width: Workers: 1, or those of a foreman.
        about: Location and device of the actor, once it is placed; of a foreman's workers, too.
        started: Whether the actor has built its worker.
        calls: Calls in flight, with the number of clients in each, and the worker's method.
        since: When the oldest of them began, as far as the driver knows.
        failures: Actors in a row that died while they started; foremen, without a result.
        failing: Whether its worker failed at several stacks in a row, when it last handed over.
        without_room: Whether its last foreman found no room for any worker.
    """

    def __init__(
        self, make: Callable[[], Any | None], spec: list[Reference], width: int = 1
    ) -> None:
        """Start an actor.

        Args:
            make: Makes the actor, or returns None while there is no node for it.
            spec: What it builds its worker from.
            width: Its workers.
        """
        self._make, self._spec, self.width = make, spec, width
        self._actor: Any = None
        self.calls: deque[tuple[Reference, int, Call | None]] = deque()
        self.failures = 0
        self.without_room = False
        self.renew()

    def renew(self) -> None:
        """Replace the actor by a new one; forget the calls of the one before."""
        self.close()
        self.about: dict[str, Any] = {}
        self.started = self.failing = self._leaving = False
        self._asked: tuple[Reference, float] | None = None
        self.calls.clear()
        self._actor = self._make()
        if self._actor is not None:
            self._sent(self._actor.location.remote(), 1, None)
            self._sent(self._actor.start.remote(self._spec), 1, None)

    @property
    def vacant(self) -> bool:
        """True while there is no node for it."""
        return self._actor is None

    @property
    def worker(self) -> str:
        """Name of its worker, once it is placed."""
        return f"{self.about['host']} {self.about['pid']}" if self.about else ""

    @property
    def workers(self) -> list[dict[str, Any]]:
        """Location and device of its workers, once they have started."""
        return self.about.get("workers", [self.about]) if self.started else []

    @property
    def placed(self) -> bool:
        """True once a node has room for it; a foreman needs none, and says so where workers do."""
        return self.started or (bool(self.about) and not self.without_room)

    def close(self) -> None:
        """End the actor."""
        if self._actor is not None:
            ray.kill(self._actor)

    def call(self, call: Call, parts: list[Part], hand_over: bool) -> None:
        """Have the actor work on items; see `ClientActor.call`."""
        reference = self._actor.call.remote(call, parts, hand_over)
        clients = sum(len(item) for _, items in parts for item in items)
        self._sent(reference, max(clients, 1), call)

    def leave(self) -> None:
        """Tell a foreman, once, that its node is left."""
        if self.width > 1 and not self._leaving:
            self._actor.leave.remote()
        self._leaving = True

    def returned(self) -> Call | None:
        """Note that the oldest call has returned; return the worker's method."""
        _, _, call = self.calls.popleft()
        self.since = perf_counter()
        return call

    def note_start(self, outcome: dict[str, Any]) -> None:
        """Note where the actor was placed, or that it has built its worker."""
        self.started = bool(self.about)
        self.about = self.about | outcome
        if self.started:
            self.without_room = False
        if self.started and self.width == 1:
            self.failures = 0

    def note_result(self, result: WorkerResult | ForemanResult) -> list[WorkerResult | FailedItem]:
        """Note what the actor handed over; return the results of its workers."""
        if isinstance(result, ForemanResult):
            self.failures = 0
            self.about = self.about | {"workers": result.workers}
            return result.results
        self.failing = result.failing
        return [result]

    def overdue(self, limit: float) -> str | None:
        """Return why the actor counts as lost, if it does.

        A worker does where its oldest call took more than `limit` seconds for each of its clients.
        A foreman, which watches its workers so, does where it has not answered for long.
        """
        if not (self.started and self.calls):
            return None
        if self.width > 1:
            patience = max(limit, SILENT_SECONDS)
            silent = self._silent_seconds() > patience
            return f"no answer for {patience:g} s" if silent else None
        reference, clients, _ = self.calls[0]
        late = perf_counter() - self.since > limit * clients
        if not late or ray.wait([reference], timeout=0)[0]:
            return None
        return f"no answer within engine.client_timeout={limit:g} s a client"

    def _silent_seconds(self) -> float:
        """Return how long there was no answer, as of the last call; ask again where there was."""
        if self._asked is None or ray.wait([self._asked[0]], timeout=0)[0]:
            self._asked = self._actor.answer.remote(), perf_counter()
        return perf_counter() - self._asked[1]

    def _sent(self, reference: Reference, clients: int, call: Call | None) -> None:
        if not self.calls:
            self.since = perf_counter()
        self.calls.append((reference, clients, call))
