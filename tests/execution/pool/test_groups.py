"""Actors in the groups that a demand has placed, against a Ray that starts no process."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from raysim.execution.pool import actors, ray_pool
from raysim.execution.resources import ActorPlan
from raysim.process.exits import interruptible
from raysim.storage.trace import Stopwatch
from tests.execution.pool.fake_ray import (
    A,
    B,
    C,
    FakeCluster,
    clients_of,
    dies,
    drain_the_first_node,
    mapped,
    widths,
)
from tests.tasks import make_settings


class FakeDemand:
    """Demand whose groups have places as the test says."""

    def __init__(self, *by_node: dict[str, int]) -> None:
        self._following = iter(by_node)
        self._placed: dict[str, int] = {}
        self.renewed: list[str] = []
        self.awaited = self.waited = 0
        self.closed = False

    def __len__(self) -> int:
        return 8

    def plan(self) -> ActorPlan:
        self._placed = next(self._following, self._placed)
        return ActorPlan(sum(self._placed.values()), 1.0, 0.0, self._placed)

    def free(self, node: str, used: Any) -> tuple[str, ...]:
        every = (f"{node} {number}" for number in range(self._placed.get(node, 0)))
        return tuple(group for group in every if group not in used)

    def renew(self, groups: tuple[str, ...]) -> None:
        self.renewed += groups

    def await_room(self) -> None:
        self.awaited += 1

    def wait(self) -> None:
        self.waited += 1

    def close(self) -> None:
        self.closed = True


def test_actors_are_added_in_the_groups_that_have_found_a_place(tmp_path, fake_ray, monkeypatch):
    monkeypatch.setattr(ray_pool, "JOIN_SECONDS", 0.0)
    monkeypatch.setattr(ray_pool, "SETTLE_SECONDS", 0.0)
    first, then = {A: 1, B: 4}, {A: 1, B: 5, C: 2}
    demand: Any = FakeDemand({A: 1}, {A: 1, B: 2}, first, first, then, then)
    spec: Any = SimpleNamespace(settings=make_settings(tmp_path, **{"engine.actors": 8}))
    pool = ray_pool.ActorPool(spec, demand.plan, Stopwatch(False), demand)
    found = [widths(pool)]
    for _ in range(2):
        list(mapped(pool, "train", None, {(client,): 1.0 for client in range(9)}))
        found.append(widths(pool))
    assert found == [[1], [1, 4], [1, 4, 1, 2]]
    groups = [group for own in pool._places.by_actor.values() for group in own.groups]
    assert groups == [f"{A} 0", *(f"{B} {number}" for number in range(5)), f"{C} 0", f"{C} 1"]
    monkeypatch.setattr(fake_ray, "kill", lambda handle: os.kill(os.getpid(), signal.SIGINT))
    with interruptible(), pytest.raises(KeyboardInterrupt):
        pool.close()
    assert demand.closed


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("soon", [True, False])
def test_room_is_asked_for_anew_where_a_node_is_drained(
    tmp_path, fake_ray, monkeypatch, workers, soon
):
    """Ray may need a while to place the new groups: their actors wait, the others go on."""
    monkeypatch.setattr(actors, "WATCH_SECONDS", 0.0)
    drain_the_first_node(fake_ray, monkeypatch)
    later = [{B: workers, C: workers}]
    demand: Any = FakeDemand(
        {A: workers, B: workers}, *([] if soon else [{B: workers}] * 3), *later
    )
    spec: Any = SimpleNamespace(settings=make_settings(tmp_path, **{"engine.actors": 2 * workers}))
    pool = ray_pool.ActorPool(spec, demand.plan, Stopwatch(False), demand)
    costs = {(client,): 1.0 for client in range(40)}
    found = list(mapped(pool, "train", None, costs))
    assert clients_of(found) == sorted(costs)
    worked = [item for _, items in fake_ray.worked for item in items]
    assert sorted(worked) == sorted(costs)  # nothing was taken back
    assert demand.renewed == [f"{A} {number}" for number in range(workers)]
    there = pool._places.by_actor.values()
    assert [(place.node, place.workers) for place in there] == [(C, workers), (B, workers)]
    groups = [group for place in there for group in place.groups]
    assert groups == [f"{node} {number}" for node in (C, B) for number in range(workers)]
    assert fake_ray.begun == 3


@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_waits_for_nodes_that_are_started_for_it_where_all_are_lost(
    tmp_path, fake_ray, monkeypatch, workers
):
    monkeypatch.setattr(actors, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(actors, "VACANT_SECONDS", 0.0)
    monkeypatch.setattr(actors, "NO_ACTOR_SECONDS", 0.0)
    fake_ray.call = dies(1, [])
    plans = [{A: workers}, *[dict[str, int]()] * 5, {B: workers}]
    demand: Any = FakeDemand(*plans)
    spec: Any = SimpleNamespace(settings=make_settings(tmp_path, **{"engine.actors": workers}))
    pool = ray_pool.ActorPool(spec, demand.plan, Stopwatch(False), demand)
    pool.describe()
    monkeypatch.setattr(FakeCluster, "lost", lambda self, node: node == A)
    before = demand.awaited
    found = list(mapped(pool, "train", None, {(client,): 1.0 for client in range(9)}))
    assert clients_of(found) == [(client,) for client in range(9)]
    assert demand.awaited > before


def test_a_pool_whose_node_is_lost_before_it_has_actors_waits_for_another(
    tmp_path, fake_ray, monkeypatch
):
    monkeypatch.setattr(actors, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(actors, "VACANT_SECONDS", 0.0)
    monkeypatch.setattr(FakeCluster, "lost", lambda self, node: node == A)
    demand: Any = FakeDemand({A: 2}, *[dict[str, int]()] * 3, {B: 2})
    spec: Any = SimpleNamespace(settings=make_settings(tmp_path, **{"engine.actors": 2}))
    pool = ray_pool.ActorPool(spec, demand.plan, Stopwatch(False), demand)
    assert pool._actors.handles[0].vacant
    assert len(pool.describe()["actors"]) == 1  # a foreman's, here


def test_a_pool_whose_nodes_are_lost_before_it_starts_waits_for_others(tmp_path, fake_ray):
    demand: Any = FakeDemand({}, {}, {B: 2})
    spec: Any = SimpleNamespace(settings=make_settings(tmp_path, **{"engine.actors": 2}))
    pool = ray_pool.ActorPool(spec, demand.plan, Stopwatch(False), demand)
    assert demand.waited == 2
    costs = {(client,): 1.0 for client in range(9)}
    assert clients_of(list(mapped(pool, "train", None, costs))) == sorted(costs)


def test_a_run_whose_nodes_are_all_lost_before_a_round_waits(tmp_path, fake_ray, monkeypatch):
    monkeypatch.setattr(ray_pool, "JOIN_SECONDS", 0.0)
    demand: Any = FakeDemand({A: 2}, {}, {B: 2})
    spec: Any = SimpleNamespace(settings=make_settings(tmp_path, **{"engine.actors": 2}))
    pool = ray_pool.ActorPool(spec, demand.plan, Stopwatch(False), demand)
    pool.describe()
    costs = {(client,): 1.0 for client in range(9)}
    assert clients_of(list(mapped(pool, "train", None, costs))) == sorted(costs)


def test_no_group_is_given_twice_where_a_node_is_lost_as_actors_start(
    tmp_path, fake_ray, monkeypatch
):
    """The first node's workers take the room of the second, and the third has theirs."""
    monkeypatch.setattr(ray_pool, "JOIN_SECONDS", 0.0)
    monkeypatch.setattr(ray_pool, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(FakeCluster, "lost", lambda self, node: node == A)
    demand: Any = FakeDemand({A: 2, B: 2}, {B: 2}, {B: 2, C: 2})
    spec: Any = SimpleNamespace(settings=make_settings(tmp_path, **{"engine.actors": 4}))
    pool = ray_pool.ActorPool(spec, demand.plan, Stopwatch(False), demand)
    pool.describe()
    costs = {(client,): 1.0 for client in range(9)}
    assert clients_of(list(mapped(pool, "train", None, costs))) == sorted(costs)
    groups = [group for own in pool._places.by_actor.values() for group in own.groups]
    assert groups == [f"{node} {number}" for node in (B, C) for number in range(2)]
