"""The pool's rules on lost actors, against a Ray that starts no process.

A client whose actor dies MAX_DEATHS times is given up, and so is a pool whose actors die as often
while they start; a node that is lost is the fault of no client.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from raysim.core.errors import MachineError
from raysim.execution import actor, ray_pool
from raysim.execution.base import FailedItem
from raysim.execution.resources import ActorPlan
from raysim.storage.trace import Stopwatch
from tests.conftest import make_settings

BAD = (3,)


class FakeRay:
    """Fake of the parts of Ray that the pool uses; a call returns when its reference is read.

    Attributes:
        call: Stands in for the actors' calls on items: returns seconds and result, or raises.
        start: Stands in for the start of an actor's worker.
        begun: Number of actors that were made.
    """

    def __init__(self) -> None:
        self.call: Callable[[list[tuple[int, ...]], bool], Any] = lambda items, give: (0.1, items)
        self.start: Callable[[], dict[str, Any]] = lambda: {"device": "cpu"}
        self.begun = 0
        self._values: dict[int, Callable[[], Any]] = {}
        self._numbers = count()

    def put(self, value: Any) -> int:
        return self._later(lambda: value)

    def get(self, reference: int) -> Any:
        return self._values.pop(reference)()

    def wait(self, references: list[int], **_: Any) -> tuple[list[int], list[int]]:
        return references[:1], references[1:]

    def kill(self, handle: Any) -> None:
        pass

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        return lambda kind: SimpleNamespace(remote=self._actor)

    def _actor(self) -> Any:
        self.begun += 1
        held: list[tuple[int, ...]] = []

        def call(name: str, shared: Any, items: list[tuple[int, ...]], give: bool) -> Any:
            held.extend(items)
            return self.call(items, give)[0], tuple(held) if give else None

        methods = {
            "location": lambda: {"pid": 1, "host": "here", "node": "node"},
            "start": lambda *_: self.start(),
            "call": call,
        }
        return SimpleNamespace(
            **{
                name: SimpleNamespace(remote=lambda *a, f=f: self._later(lambda: f(*a)))
                for name, f in methods.items()
            }
        )

    def _later(self, value: Callable[[], Any]) -> int:
        number = next(self._numbers)
        self._values[number] = value
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


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray_pool, "ray", fake)
    monkeypatch.setattr(actor, "ray", fake)
    monkeypatch.setattr(ray_pool, "ClusterHealth", FakeCluster)
    monkeypatch.setattr(ray_pool, "get_current_placement_group", lambda: None)
    return fake


def results(tmp_path: Any, clients: int = 6, actors: int = 1) -> tuple[list[Any], list[int]]:
    """Return what a pool hands over for as many clients, and what it says of its progress."""
    spec: Any = SimpleNamespace(settings=make_settings(tmp_path))
    plan = ActorPlan(actors, 1.0, 0.0)
    progress: list[int] = []
    pool = ray_pool.ActorPool(spec, lambda: plan, Stopwatch(False))
    costs = {(client,): 1.0 for client in range(clients)}
    return list(pool.map("train", None, costs, progress.append)), progress


def clients_of(found: list[Any]) -> list[tuple[int, ...]]:
    return sorted(item for each in found if isinstance(each, tuple) for item in each)


def dies(times: int, calls: list[Any]) -> Callable[..., Any]:
    """Return a call whose actor dies so often where it works on the bad client."""

    def call(items: list[tuple[int, ...]], give: bool) -> Any:
        if BAD in items and len(calls) < times:
            calls.append(items)
            raise ActorDiedError
        return 0.1, None

    return call


@pytest.mark.parametrize("actors", [1, 3])
def test_every_client_is_handed_over_once(tmp_path, fake_ray, actors):
    found, progress = results(tmp_path, clients=40, actors=actors)
    assert clients_of(found) == [(client,) for client in range(40)]
    assert fake_ray.begun == actors and progress == sorted(progress) and progress[-1] == 40


def test_a_client_is_given_up_after_as_many_deaths_as_max_deaths_says(tmp_path, fake_ray):
    calls: list[Any] = []
    fake_ray.call = dies(100, calls)
    found, _ = results(tmp_path)
    assert len(calls) == ray_pool.MAX_DEATHS and calls[1:] == [[BAD]] * (ray_pool.MAX_DEATHS - 1)
    (failed,) = (each for each in found if isinstance(each, FailedItem))
    assert failed.item == BAD
    assert failed.cause.startswith(f"its worker died {ray_pool.MAX_DEATHS} times: ")
    assert clients_of(found) == [(client,) for client in range(6) if client != 3]
    assert fake_ray.begun == 1 + ray_pool.MAX_DEATHS


def test_a_client_that_is_survived_in_the_end_is_not_given_up(tmp_path, fake_ray):
    fake_ray.call = dies(ray_pool.MAX_DEATHS - 1, [])
    found, _ = results(tmp_path)
    assert clients_of(found) == [(client,) for client in range(6)]


def test_a_node_that_is_lost_is_no_client_s_fault(tmp_path, fake_ray, monkeypatch):
    monkeypatch.setattr(FakeCluster, "nodes_lost", True)
    fake_ray.call = dies(2 * ray_pool.MAX_DEATHS, [])
    found, _ = results(tmp_path)
    assert clients_of(found) == [(client,) for client in range(6)]
    assert fake_ray.begun == 1 + 2 * ray_pool.MAX_DEATHS


def test_actors_that_die_while_they_start_stop_the_run(tmp_path, fake_ray):
    def start() -> Any:
        raise ActorDiedError

    fake_ray.start = start
    message = rf"^an actor died {ray_pool.MAX_DEATHS} times in a row while it started: "
    with pytest.raises(MachineError, match=message):
        results(tmp_path)
    assert fake_ray.begun == ray_pool.MAX_DEATHS
