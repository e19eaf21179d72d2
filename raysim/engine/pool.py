"""The ray executor: a pool of resident actors on fractional GPUs or cores.

The pool lives for the whole run. What a call shares travels once, through the object store. What an
actor is handed next is decided in `placement.py`. A lost actor costs the chunks that it had not
handed over: Ray restarts it, and they go to whoever is free.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, get_args

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from raysim.core.errors import RaysimError, RunError
from raysim.engine.executor import Call, Item
from raysim.engine.placement import IN_FLIGHT, Schedule, Speeds
from raysim.engine.profile import Stopwatch
from raysim.engine.resources import ActorPlan
from raysim.engine.worker import Worker, WorkerSpec

Reference = ray.ObjectRef[Any]
MAX_DEATHS = 3
"""Worker deaths during one client's training after which the run stops."""


class ClientActor:
    """A worker in a process of its own, pinned to its share of a GPU or to cores."""

    def start(self, spec: list[Reference], gpus: float) -> dict[str, Any]:
        """Build the worker; return where it runs.

        A call, not the constructor: Ray cannot restart an actor whose constructor's arguments
        lie in the object store.
        """
        if gpus and torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(min(gpus, 1.0))
        self._worker = Worker(ray.get(spec[0]))
        self._shared: tuple[Reference, Any] | None = None
        context = ray.get_runtime_context()
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "node": context.get_node_id(),
            "gpus": context.get_accelerator_ids().get("GPU", []),
            **self._worker.about(min(gpus, 1.0)),
        }

    def call(self, name: Call, shared: list[Reference], items: list[Item], give: bool) -> Any:
        """Work on items; return the seconds taken and, where asked, all that the worker holds."""
        begun = perf_counter()
        if self._shared is None or self._shared[0] != shared[0]:
            with self._worker.watch("broadcast"):
                self._shared = (shared[0], ray.get(shared[0]))
        getattr(self._worker, name)(self._shared[1], items)
        return perf_counter() - begun, self._worker.take() if give else None


@dataclass
class _Slot:
    """One actor of the pool, as the driver sees it.

    Attributes:
        handle: The actor.
        started: Whether it has built its worker; until then it is handed nothing.
        about: Where it runs.
        calls: Calls in flight, in the order in which they return.
    """

    handle: Any
    started: bool = False
    about: dict[str, Any] = field(default_factory=dict)
    calls: deque[Reference] = field(default_factory=deque)


@dataclass
class _Work:
    """One call of `map`: what is called, what is shared, and who does what."""

    call: Call
    shared: list[Reference]
    schedule: Schedule


class ActorPool:
    """Runs workers' calls on a pool of actors."""

    def __init__(self, spec: WorkerSpec, plan: ActorPlan, watch: Stopwatch) -> None:
        remote = ray.remote(
            num_cpus=plan.cpus, num_gpus=plan.gpus, max_restarts=-1, max_task_retries=0
        )(ClientActor)
        self._plan, self._watch = plan, watch
        self._spec = [ray.put(spec)]
        self._slots = [_Slot(remote.remote()) for _ in range(plan.actors)]
        self._workers = range(plan.actors)
        self._oldest: dict[Reference, int] = {}
        self._speeds = {name: Speeds(plan.actors) for name in get_args(Call)}
        for worker in self._workers:
            self._start(worker)

    def describe(self) -> dict[str, Any]:
        """Return where work runs; waits until every actor has started."""
        while not all(slot.started for slot in self._slots):
            self._wait()
        return {
            "backend": "ray",
            "cpus_per_actor": self._plan.cpus,
            "gpus_per_actor": self._plan.gpus,
            "actors": [slot.about for slot in self._slots],
        }

    def map(
        self, call: Call, shared: Any, costs: Mapping[Item, float], on_done: Callable[[int], None]
    ) -> Iterator[Any]:
        """Have the actors work on all items; yield what each hands over.

        Raises:
            RunError: an actor cannot start, or actors died again and again over one item.
        """
        with self._watch("broadcast"):
            put = [ray.put(shared)]
        with self._watch("placement"):
            work = _Work(call, put, Schedule(costs, self._speeds[call]))
            self._fill(self._workers, work)
        while not work.schedule.finished:
            worker, outcome = self._wait()
            with self._watch("placement"):
                result = self._note(worker, work, outcome)
                # What a lost actor was to do may be for anyone who has nothing to do.
                self._fill(self._workers if isinstance(outcome, RayError) else [worker], work)
            on_done(work.schedule.done)
            if result is not None:
                yield result

    def close(self) -> None:
        """Stop the actors."""
        for slot in self._slots:
            ray.kill(slot.handle)

    def _fill(self, workers: Iterable[int], work: _Work) -> None:
        """Hand actors that have started what is due: a chunk to each, then the next to each."""
        for worker in [*workers] * IN_FLIGHT:
            slot = self._slots[worker]
            due = work.schedule.next(worker) if slot.started else None
            if due is not None:
                self._sent(worker, slot.handle.call.remote(work.call, work.shared, *due))

    def _note(self, worker: int, work: _Work, outcome: Any) -> Any:
        """Note what became of an actor's oldest call; return what it handed over, if anything."""
        if outcome is None:  # it has started
            return None
        if isinstance(outcome, RayError):
            self._lose(worker, work, outcome)
            return None
        seconds, result = outcome
        work.schedule.returned(worker, seconds)
        return result

    def _lose(self, worker: int, work: _Work, error: RayError) -> None:
        """Take back everything that a lost actor had not handed over, and start it again."""
        schedule = work.schedule
        items, _ = schedule.lost(worker)
        if items and schedule.deaths[items[0]] >= MAX_DEATHS:
            clients = ", ".join(map(str, items[0]))
            raise RunError(
                f"client {clients}: its worker died {MAX_DEATHS} times while training it:"
                f" {_last_line(error)}"
            ) from error
        calls = self._slots[worker].calls
        if calls:
            del self._oldest[calls[0]]
        calls.clear()
        self._start(worker)

    def _start(self, worker: int) -> None:
        """Have an actor build its worker before it is handed work, at first and when restarted."""
        slot = self._slots[worker]
        slot.started = False
        self._sent(worker, slot.handle.start.remote(self._spec, self._plan.gpus))

    def _sent(self, worker: int, call: Reference) -> None:
        """Note a call in flight; only the oldest of each actor is waited for."""
        calls = self._slots[worker].calls
        calls.append(call)
        self._oldest[calls[0]] = worker

    def _wait(self) -> tuple[int, Any]:
        """Wait until a call returns; return its actor's number and the outcome, None for a start.

        The outcome of a call whose actor was lost is Ray's error. Among calls that have returned,
        the one that was waited for longest is first: nobody is left waiting for the driver.
        """
        (reference,), _ = ray.wait(list(self._oldest), num_returns=1)
        worker = self._oldest.pop(reference)
        slot = self._slots[worker]
        slot.calls.popleft()
        if slot.calls:
            self._oldest[slot.calls[0]] = worker
        try:
            outcome = ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, RaysimError):
                raise error.cause from error
            raise
        except RayError as error:
            outcome = error
        if slot.started:
            return worker, outcome
        if isinstance(outcome, RayError):
            self._start(worker)
        else:
            slot.started, slot.about = True, outcome
        return worker, None


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else repr(error)
