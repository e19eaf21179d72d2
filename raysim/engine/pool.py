"""The ray executor: a pool of resident actors on fractional GPUs or cores.

The pool lives for the whole run. What a call shares travels once, through the object store. Two
chunks are in flight per actor, so that none waits for the driver; an idle actor takes what another
has not been handed yet. A lost actor costs its unreturned chunks: Ray restarts it, and they go to
whoever is free.
"""

from __future__ import annotations

import os
import socket
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from raysim.core.errors import RaysimError, RunError
from raysim.engine.executor import Call
from raysim.engine.placement import assign, steal, take_chunk
from raysim.engine.resources import ActorPlan
from raysim.engine.worker import Worker, WorkerSpec

Reference = ray.ObjectRef[Any]
IN_FLIGHT = 2
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
            "device": str(self._worker.device),
        }

    def call(self, name: Call, shared: list[Reference], items: list[int]) -> Any:
        """Return the seconds that a worker's call took, and its result."""
        begun = perf_counter()
        if self._shared is None or self._shared[0] != shared[0]:
            self._shared = (shared[0], ray.get(shared[0]))
        result = getattr(self._worker, name)(self._shared[1], items)
        return perf_counter() - begun, result


@dataclass
class _Slot:
    """One actor of the pool, as the driver sees it."""

    handle: Any
    starting: Reference | None = None
    about: dict[str, Any] = field(default_factory=dict)
    queue: deque[int] = field(default_factory=deque)
    sent: dict[Reference, list[int]] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)


class ActorPool:
    """Runs workers' calls on a pool of actors."""

    def __init__(self, spec: WorkerSpec, plan: ActorPlan) -> None:
        remote = ray.remote(
            num_cpus=plan.cpus, num_gpus=plan.gpus, max_restarts=-1, max_task_retries=0
        )(ClientActor)
        self._plan = plan
        self._spec = [ray.put(spec)]
        self._slots = [_Slot(remote.remote()) for _ in range(plan.actors)]
        for slot in self._slots:
            self._start(slot)

    def describe(self) -> dict[str, Any]:
        """Return where work runs; waits until every actor has started."""
        while any(slot.starting for slot in self._slots):
            self._wait()
        return {
            "backend": "ray",
            "cpus_per_actor": self._plan.cpus,
            "gpus_per_actor": self._plan.gpus,
            "actors": [slot.about for slot in self._slots],
        }

    def map(self, call: Call, shared: Any, costs: Mapping[int, float]) -> Iterator[Any]:
        """Yield the results of a call over chunks of all items.

        Raises:
            RunError: an actor cannot start, or actors died again and again over one item.
        """
        reference = [ray.put(shared)]
        mean = [slot.speed[call] for slot in self._slots if call in slot.speed]
        usual = sum(mean) / len(mean) if mean else 1.0
        speeds = [slot.speed.get(call, usual) for slot in self._slots]
        for slot, queue in zip(self._slots, assign(costs, speeds), strict=True):
            slot.queue = queue
        deaths: Counter[int] = Counter()
        left = len(costs)
        while left:
            for slot in self._slots:
                self._fill(slot, call, reference, costs, deaths)
            for slot, items, outcome in self._wait():
                if isinstance(outcome, RayError):
                    self._count_deaths(items, deaths, outcome)
                    slot.queue.extendleft(reversed(items))
                    continue
                seconds, result = outcome
                work = sum(costs[item] for item in items)
                before = slot.speed.get(call, work / seconds)
                slot.speed[call] = 0.5 * before + 0.5 * work / seconds
                left -= len(items)
                yield result

    def close(self) -> None:
        """Stop the actors."""
        for slot in self._slots:
            ray.kill(slot.handle)

    def _fill(
        self,
        slot: _Slot,
        call: Call,
        shared: list[Reference],
        costs: Mapping[int, float],
        deaths: Counter[int],
    ) -> None:
        """Hand an actor that has started chunks until two are in flight."""
        while not slot.starting and len(slot.sent) < IN_FLIGHT:
            if not slot.queue and not slot.sent:
                others = [other.queue for other in self._slots if other.queue]
                slot.queue = steal(others, costs) if others else slot.queue
            if not slot.queue:
                return
            suspect = slot.queue[0] in deaths
            if suspect and slot.sent:
                return
            items = [slot.queue.popleft()] if suspect else take_chunk(slot.queue, costs)
            slot.sent[slot.handle.call.remote(call, shared, items)] = items

    def _start(self, slot: _Slot) -> None:
        """Have an actor build its worker before it is handed work, at first and when restarted."""
        slot.starting = slot.handle.start.remote(self._spec, self._plan.gpus)

    def _wait(self) -> list[tuple[_Slot, list[int], Any]]:
        """Wait for something to happen; return the outcomes of chunks, deaths among them."""
        owners = {ref: slot for slot in self._slots for ref in slot.sent}
        owners |= {slot.starting: slot for slot in self._slots if slot.starting}
        ready, _ = ray.wait(list(owners), num_returns=1)
        outcomes = []
        for reference in ready:
            slot = owners[reference]
            items = slot.sent.pop(reference, None)
            try:
                outcome = ray.get(reference)
            except RayTaskError as error:
                if isinstance(error.cause, RaysimError):
                    raise error.cause from error
                raise
            except RayError as error:
                outcome = error
                if items is None or not slot.starting:
                    self._start(slot)
            if items is not None:
                outcomes.append((slot, items, outcome))
            elif not isinstance(outcome, RayError):
                slot.starting, slot.about = None, outcome
        return outcomes

    @staticmethod
    def _count_deaths(items: list[int], deaths: Counter[int], error: RayError) -> None:
        deaths.update(items)
        if deaths[items[0]] >= MAX_DEATHS:
            raise RunError(
                f"client {items[0]}: its worker died {MAX_DEATHS} times while training it:"
                f" {_last_line(error)}"
            ) from error


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else repr(error)
