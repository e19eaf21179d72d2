"""A Ray that starts no process, and pools on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from raysim.execution.base import Call, unnoticed
from raysim.execution.pool import places, ray_pool
from raysim.execution.resources import ActorPlan
from raysim.storage.trace import Stopwatch
from tests.tasks import make_settings

BAD = (3,)
A, B, C, D, HERE = (digit * 56 for digit in "abcde")
"""Ids of nodes; the last is that of actors of which none is said."""


@dataclass(frozen=True)
class FakeResult:
    """Everything that a fake worker held.

    Attributes:
        worker: Host and process of the worker.
        items: Its items since it last handed over.
        failing: Whether its last stacks failed.
        given_back: Nothing: a fake foreman hands all to its workers.
    """

    worker: str
    items: tuple[tuple[int, ...], ...]
    failing: bool
    given_back: tuple[()] = ()


class FakeReference(int):
    """Reference of a fake Ray."""

    def future(self) -> None:
        pass


class FakeRay:
    """Fake of the parts of Ray that the pool uses; a call returns when its reference is read.

    Attributes:
        call: Stands in for the actors' calls on items: returns seconds and result, or raises.
        start: Stands in for the start of the worker of an actor, whose process it is given.
        begun: Number of actors that were made; each one's process has the number as its id.
        failing: Processes that say of themselves that they fail.
        worked: Processes and items of all calls that returned.
        messages: The reference of the message with which each item was worked on.
        told: How many references came beside it.
        placed: How many actors nodes have room for.
        nodes: Ids of the nodes of actors, by process.
        left: Foremen that were told that their node is left.
        killed: Number of actors that were ended.
    """

    def __init__(self) -> None:
        self.call: Callable[[list[tuple[int, ...]], bool], Any] = lambda items, give: (0.1, items)
        self.failing: set[int] = set()
        self.worked: list[tuple[int, list[tuple[int, ...]]]] = []
        self.messages: dict[tuple[int, ...], int] = {}
        self.told: dict[tuple[int, ...], int] = {}
        self.placed = 100
        self.nodes: dict[int, str] = {}
        self.left: list[int] = []
        self.start: Callable[[int], dict[str, Any]] = lambda process: {"device": "cpu"}
        self.begun = self.killed = 0
        self._values: dict[int, Callable[[], Any]] = {}
        self.waits = 0
        self._unplaced: set[int] = set()
        self._numbers = count()

    def put(self, value: Any) -> int:
        return self._later(lambda: value)

    def get(self, reference: int) -> Any:
        return self._values.pop(reference)()

    def wait(self, references: list[int], **_: Any) -> tuple[list[int], list[int]]:
        assert references  # as Ray does
        self.waits += 1
        assert self.waits < 1000, "it waits for ever"
        ready = [reference for reference in references if reference not in self._unplaced]
        return ready[:1], references[1:]

    def kill(self, handle: Any) -> None:
        self.killed += 1

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        made = SimpleNamespace(remote=self._actor, options=lambda **_: made)
        return lambda kind: made

    def _actor(self, *_: Any) -> Any:
        self.begun += 1
        process, everything = self.begun, dict[str, list[Any]]()

        def call(name: str, parts: list[Any], give: bool) -> Any:
            items = [item for _, own in parts for item in own]
            self.messages |= {item: message for (message, *_), own in parts for item in own}
            self.told |= {item: len(told) for (_, *told), own in parts for item in own}
            seconds, held = self.call(items, give)[0], everything.setdefault(name, [])
            held.extend(items)
            self.worked.append((process, items))
            if not give:
                return seconds, None
            result = FakeResult(f"here {process}", tuple(held), process in self.failing)
            held.clear()
            return seconds, result

        methods = {
            "location": lambda: {
                "pid": process,
                "host": "here",
                "node": self.nodes.get(process, HERE),
            },
            "start": lambda *_: self.start(process),
            "call": call,
        }
        return SimpleNamespace(
            leave=SimpleNamespace(remote=lambda: self.left.append(process)),
            **{
                name: SimpleNamespace(remote=lambda *a, f=f: self._later(lambda: f(*a), process))
                for name, f in methods.items()
            },
        )

    def _later(self, value: Callable[[], Any], process: int = 0) -> int:
        number = FakeReference(next(self._numbers))
        self._values[number] = value
        if process > self.placed:
            self._unplaced.add(number)
        return number


class FakeCluster:
    """A cluster whose nodes are lost where that is said."""

    nodes_lost = False

    def check_store(self) -> None:
        pass

    def check(self) -> bool:
        return True

    def lost(self, node: str | None) -> bool:
        return self.nodes_lost

    def close(self) -> None:
        pass


def make_pool(tmp_path: Any, actors: Callable[[], int], **overrides: Any) -> ray_pool.ActorPool:
    spec: Any = SimpleNamespace(settings=make_settings(tmp_path, **overrides))
    return ray_pool.ActorPool(spec, lambda: ActorPlan(actors(), 1.0, 0.0), Stopwatch(False))


def pool_of(tmp_path: Any, actors: int) -> ray_pool.ActorPool:
    return make_pool(tmp_path, lambda: actors)


def pool_on(tmp_path: Any, *plans: dict[str, int], **overrides: Any) -> ray_pool.ActorPool:
    """Return a pool on nodes with so many workers each; later plans are for later looks."""
    spec: Any = SimpleNamespace(settings=make_settings(tmp_path, **overrides))
    following = iter(plans)

    def plan() -> ActorPlan:
        by_node = next(following)
        return ActorPlan(sum(by_node.values()), 1.0, 0.0, by_node)

    return ray_pool.ActorPool(spec, plan, Stopwatch(False))


def widths(pool: ray_pool.ActorPool) -> list[int]:
    return [handle.width for handle in pool._actors.handles]


def mapped(
    pool: Any, call: Call, message: Any, costs: Any, on_done: Any = unnoticed, **more: Any
) -> Any:
    """Submit items to a pool; return its results."""
    pool.submit(call, message, costs, **more)
    return pool.results(call, on_done)


def clients_of(found: list[Any]) -> list[tuple[int, ...]]:
    return sorted(item for each in found if isinstance(each, FakeResult) for item in each.items)


def lined_up(clients: Iterable[int]) -> dict[str, Any]:
    """Return items with places, the larger numbers first."""
    items = [(client,) for client in clients]
    return {"costs": dict.fromkeys(items, 1.0), "due": {item: -item[0] for item in items}}


def dies(times: int, calls: list[Any]) -> Callable[..., Any]:
    """Return a call whose actor dies so often where it works on the bad client."""

    def call(items: list[tuple[int, ...]], give: bool) -> Any:
        if BAD in items and len(calls) < times:
            calls.append(items)
            raise ActorDiedError
        return 0.1, None

    return call


def drain_the_first_node(fake_ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Ray drain the node of the first actor as soon as an item has been trained."""
    monkeypatch.setattr(ray_pool, "DRAIN_SECONDS", 0.0)
    draining: list[set[str]] = [set()]
    monkeypatch.setattr(ray_pool, "draining_node_ids", lambda: draining[0])
    monkeypatch.setattr(places, "draining_node_ids", lambda: draining[0])

    def call(items: list[tuple[int, ...]], give: bool) -> Any:
        draining[0] = {A}
        return 0.1, None

    fake_ray.call, fake_ray.nodes = call, {1: A, 2: B, 3: C}
