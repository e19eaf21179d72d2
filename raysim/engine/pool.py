"""The ray executor: a pool of resident actors on fractional GPUs or cores.

The pool lives for the whole run. What a call shares travels once, through the object store. Two
chunks are in flight per actor, so that none waits for the driver; an idle actor takes what another
has not been handed yet. An actor keeps its sum over several chunks and hands it over once, when
its work runs out: a sum is as large as the model, and returning one per chunk cost 15% of a round
of the 2NN. A lost actor costs the chunks that it had not handed over: Ray restarts it, and they go
to whoever is free.
"""

from __future__ import annotations

import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from raysim.core.errors import RaysimError, RunError
from raysim.engine.executor import Call, Item
from raysim.engine.placement import assign, steal, take_chunk
from raysim.engine.profile import Stopwatch
from raysim.engine.resources import ActorPlan
from raysim.engine.worker import Worker, WorkerSpec

Reference = ray.ObjectRef[Any]
IN_FLIGHT = 2
HOLD_SECONDS = 10.0
"""Work after which an actor hands over its sum, so that no more than that is lost with it."""
MEMORY = 0.9
"""What a measurement of an actor's speed still counts after the next one."""
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
        starting: The call that builds its worker, until that has returned.
        about: Where it runs.
        queue: Items meant for it that it has not been handed.
        sent: Calls in flight, with their items.
        held: Items done whose results the actor still holds, and the seconds that they took.
        pace: Per kind of call, recent work and the seconds that it took.
    """

    handle: Any
    starting: Reference | None = None
    about: dict[str, Any] = field(default_factory=dict)
    queue: deque[Item] = field(default_factory=deque)
    sent: dict[Reference, list[Item]] = field(default_factory=dict)
    held: list[Item] = field(default_factory=list)
    held_seconds: float = 0.0
    pace: dict[str, tuple[float, float]] = field(default_factory=dict)

    def measure(self, call: Call, work: float, seconds: float) -> None:
        """Learn from a call how fast this actor is; older calls count less and less."""
        before, took = self.pace.get(call, (0.0, 0.0))
        self.pace[call] = (MEMORY * before + work, MEMORY * took + seconds)


class ActorPool:
    """Runs workers' calls on a pool of actors."""

    def __init__(self, spec: WorkerSpec, plan: ActorPlan, watch: Stopwatch) -> None:
        remote = ray.remote(
            num_cpus=plan.cpus, num_gpus=plan.gpus, max_restarts=-1, max_task_retries=0
        )(ClientActor)
        self._plan, self._watch = plan, watch
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

    def map(
        self, call: Call, shared: Any, costs: Mapping[Item, float], on_done: Callable[[int], None]
    ) -> Iterator[Any]:
        """Have the actors work on all items; yield what each hands over.

        Raises:
            RunError: an actor cannot start, or actors died again and again over one item.
        """
        with self._watch("broadcast"):
            work = _Work(call, [ray.put(shared)], costs)
        with self._watch("placement"):
            speeds = _speeds([slot.pace.get(call) for slot in self._slots])
            for slot, queue in zip(self._slots, assign(costs, speeds), strict=True):
                slot.queue = queue
        done = given = 0
        while given < len(costs):
            with self._watch("placement"):
                for slot in self._slots:
                    self._fill(slot, work)
            ended = self._wait()
            if ended is None:
                continue
            slot, items, outcome = ended
            if isinstance(outcome, RayError):
                done -= sum(map(len, slot.held))
                self._lose(slot, items, work, outcome)
                continue
            seconds, result = outcome
            if items:
                slot.measure(call, sum(costs[item] for item in items), seconds)
            slot.held += items
            slot.held_seconds += seconds
            done += sum(map(len, items))
            on_done(done)
            if result is not None:
                given += len(slot.held)
                slot.held, slot.held_seconds = [], 0.0
                yield result

    def close(self) -> None:
        """Stop the actors."""
        for slot in self._slots:
            ray.kill(slot.handle)

    def _fill(self, slot: _Slot, work: _Work) -> None:
        """Hand an actor that has started chunks until two are in flight."""
        while not slot.starting and len(slot.sent) < IN_FLIGHT:
            if not slot.queue and not slot.sent:
                others = [other.queue for other in self._slots if other.queue]
                slot.queue = steal(others, work.costs) if others else slot.queue
            if not slot.queue:
                if slot.held and not slot.sent:
                    self._send(slot, work, [], give=True)
                return
            suspect = slot.queue[0] in work.deaths
            last_of_many = len(slot.queue) == 1 and len(self._slots) > 1
            if slot.sent and (suspect or last_of_many):
                return  # an idle actor may take the last one; a suspect is tried alone
            items = [slot.queue.popleft()] if suspect else take_chunk(slot.queue, work.costs)
            give = not slot.queue or slot.held_seconds > HOLD_SECONDS
            self._send(slot, work, items, give)

    @staticmethod
    def _send(slot: _Slot, work: _Work, items: list[Item], give: bool) -> None:
        slot.sent[slot.handle.call.remote(work.call, work.shared, items, give)] = items

    def _lose(self, slot: _Slot, items: list[Item], work: _Work, error: RayError) -> None:
        """Take back everything that a lost actor had not handed over, and start it again."""
        work.deaths.update(items)
        if items and work.deaths[items[0]] >= MAX_DEATHS:
            clients = ", ".join(map(str, items[0]))
            raise RunError(
                f"client {clients}: its worker died {MAX_DEATHS} times while training it:"
                f" {_last_line(error)}"
            ) from error
        waiting = [item for sent in slot.sent.values() for item in sent]
        slot.queue.extendleft(reversed([*items, *waiting, *slot.held]))
        slot.sent, slot.held, slot.held_seconds = {}, [], 0.0
        self._start(slot)

    def _start(self, slot: _Slot) -> None:
        """Have an actor build its worker before it is handed work, at first and when restarted."""
        slot.starting = slot.handle.start.remote(self._spec, self._plan.gpus)

    def _wait(self) -> tuple[_Slot, list[Item], Any] | None:
        """Wait until a call returns; return its actor, items and outcome, or None for a start.

        The outcome of a call whose actor was lost is Ray's error.
        """
        owners = {ref: slot for slot in self._slots for ref in slot.sent}
        owners |= {slot.starting: slot for slot in self._slots if slot.starting}
        (reference,), _ = ray.wait(list(owners), num_returns=1)
        slot = owners[reference]
        try:
            outcome = ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, RaysimError):
                raise error.cause from error
            raise
        except RayError as error:
            outcome = error
        if reference in slot.sent:
            return slot, slot.sent.pop(reference), outcome
        if isinstance(outcome, RayError):
            self._start(slot)
        else:
            slot.starting, slot.about = None, outcome
        return None


@dataclass
class _Work:
    """One call of `map`: what is called, what is shared, and what went wrong so far."""

    call: Call
    shared: list[Reference]
    costs: Mapping[Item, float]
    deaths: Counter[Item] = field(default_factory=Counter)


def _speeds(paces: list[tuple[float, float] | None]) -> list[float]:
    """Return work per second of each actor; one never measured counts as the others' mean."""
    known = [work / seconds for work, seconds in (pace for pace in paces if pace)]
    usual = sum(known) / len(known) if known else 1.0
    return [pace[0] / pace[1] if pace else usual for pace in paces]


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else repr(error)
