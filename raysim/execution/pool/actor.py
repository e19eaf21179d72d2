"""Actor of the pool: a worker in its own process, the driver's handle, and its events."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import ray
import torch

from raysim.config import EngineSettings
from raysim.execution.base import Call, Item
from raysim.execution.messages import FailedItem, ForemanResult, WorkerResult
from raysim.execution.module_path import with_driver_path
from raysim.execution.pool.broadcasts import Reference, fetch
from raysim.execution.process import configure, keep_freed_memory
from raysim.execution.resources import ActorPlan
from raysim.execution.worker import Worker

SILENT_SECONDS = 60.0
"""Seconds without an answer after which a foreman is lost, if a client's time is limited."""


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
        result: The result that a worker, if asked to, or a foreman handed over.
        reading: Seconds of reading the result, which joins the parts of a foreman's sum.
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
        call: The worker's method that was running, if any.
        suspicious: Whether the processed clients may be the cause.
        had_started: Whether the actor had built its worker.
    """

    actor: int
    cause: str
    call: Call | None
    suspicious: bool = True
    had_started: bool = True


@dataclass(frozen=True)
class CallReceived:
    """Event: a foreman has received calls of the driver."""


Part = tuple[tuple[Reference, ...], list[Item]]
"""Message with the directions to foremen, and the items to be processed with it."""
ActorEvent = ActorStarted | CallReturned | ActorLost
Event = ActorEvent | CallReceived


class ClientActor:
    """Worker in its own process, pinned to its fraction of a GPU or to cores."""

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
        torch.set_default_dtype(built.federation.default_dtype)
        keep_freed_memory()
        self._worker = Worker(built)
        self._message: tuple[Reference, Any] | None = None
        return self._worker.about()

    def call(self, name: Call, parts: list[Part], hand_over: bool) -> Any:
        """Process items; return the seconds taken and, if asked, the worker's result."""
        begun = perf_counter()
        for (message, *_), items in parts:
            if self._message is None or self._message[0] != message:
                with self._worker.watch("broadcast"):
                    self._message = (message, fetch(message))
            getattr(self._worker, name)(self._message[1], items)
        return perf_counter() - begun, self._worker.take(name) if hand_over else None


def client_actors(engine: EngineSettings, plan: ActorPlan, *, chosen: bool) -> Callable[[], Any]:
    """Return a function that creates an actor of a plan on any node.

    Args:
        engine: The engine's settings.
        plan: The plan.
        chosen: Whether the settings choose the nodes; else a placement group has chosen them.
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
    """Handle of an actor in the driver or a foreman, which replaces a lost actor.

    Ray places an actor when a node has room for it; the actor builds its worker before it gets
    items. Its calls return in order.

    Attributes:
        width: Number of workers: 1, or more for a foreman.
        about: Location and device of the placed actor, and of a foreman's workers.
        started: Whether the actor has built its worker.
        calls: Calls in flight, with the number of clients in each, and the worker's method.
        since: When the oldest call in flight began, as far as the driver knows.
        failures: Consecutive actors that died while they started; of a foreman, without a result.
        failing: Whether its worker had failed at several stacks in a row when it last handed over.
        without_room: Whether its last foreman found no room for any worker.
    """

    def __init__(
        self, make: Callable[[], Any | None], spec: list[Reference], width: int = 1
    ) -> None:
        """Start an actor.

        Args:
            make: Creates the actor, or returns None while there is no node for it.
            spec: Specification of its worker.
            width: Number of its workers.
        """
        self._make, self._spec, self.width = make, spec, width
        self._actor: Any = None
        self.calls: deque[tuple[Reference, int, Call | None]] = deque()
        self.failures = 0
        self.without_room = False
        self.renew()

    def renew(self) -> None:
        """Replace the actor by a new one, and forget the calls of the old one."""
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
        """True while there is no node for the actor."""
        return self._actor is None

    @property
    def worker(self) -> str:
        """Name of the worker of a placed actor; else empty."""
        return f"{self.about['host']} {self.about['pid']}" if self.about else ""

    @property
    def workers(self) -> list[dict[str, Any]]:
        """Location and device of its started workers."""
        return self.about.get("workers", [self.about]) if self.started else []

    @property
    def placed(self) -> bool:
        """True once a node has room for the actor; of a foreman, for one of its workers."""
        return self.started or (bool(self.about) and not self.without_room)

    def close(self) -> None:
        """End the actor; nobody hears of its calls any more."""
        for reference, *_ in self.calls:
            reference.future()  # takes an error, which Ray would print as one that nobody has read
        if self._actor is not None:
            ray.kill(self._actor)

    def call(self, call: Call, parts: list[Part], hand_over: bool) -> None:
        """Let the actor process items; see `ClientActor.call`."""
        reference = self._actor.call.remote(call, parts, hand_over)
        clients = sum(len(item) for _, items in parts for item in items)
        self._sent(reference, max(clients, 1), call)

    def leave(self) -> None:
        """Tell a foreman, once, to leave its node."""
        if self.width > 1 and not self._leaving:
            self._actor.leave.remote()
        self._leaving = True

    def returned(self) -> Call | None:
        """Note that the oldest call has returned; return the worker's method."""
        _, _, call = self.calls.popleft()
        self.since = perf_counter()
        return call

    def note_start(self, outcome: dict[str, Any]) -> None:
        """Note the actor's placement, or that it has built its worker."""
        self.started = bool(self.about)
        self.about = self.about | outcome
        if self.started:
            self.without_room = False
        if self.started and self.width == 1:
            self.failures = 0

    def note_result(self, result: WorkerResult | ForemanResult) -> list[WorkerResult | FailedItem]:
        """Note a result that the actor handed over; return the results of its workers."""
        if isinstance(result, ForemanResult):
            self.failures = 0
            self.about = self.about | {"workers": result.workers}
            return result.results
        self.failing = result.failing
        return [result]

    def overdue(self, limit: float) -> str | None:
        """Return why the actor counts as lost, or None.

        A worker is lost if its oldest call takes more than `limit` seconds for each of its clients;
        a foreman, which watches its workers in this way, if it has not answered for long.
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
        """Return the seconds without an answer to the last call; after an answer, call again."""
        if self._asked is None or ray.wait([self._asked[0]], timeout=0)[0]:
            self._asked = self._actor.answer.remote(), perf_counter()
        return perf_counter() - self._asked[1]

    def _sent(self, reference: Reference, clients: int, call: Call | None) -> None:
        if not self.calls:
            self.since = perf_counter()
        self.calls.append((reference, clients, call))
