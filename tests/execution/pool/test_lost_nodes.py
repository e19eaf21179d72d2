"""Nodes that are drained, lost or taken by others, against a Ray that starts no process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from raysim.errors import MachineError
from raysim.execution.cluster_health import NodeLostError
from raysim.execution.pool import actors, places, ray_pool
from raysim.execution.pool.actors import MAX_DEATHS, NoActorError
from tests.execution.pool.fake_ray import (
    BAD,
    A,
    B,
    C,
    D,
    FakeCluster,
    clients_of,
    dies,
    drain_the_first_node,
    mapped,
    pool_of,
    pool_on,
)


@pytest.mark.parametrize("started", [False, True])
def test_an_actor_on_a_drained_node_is_replaced_also_before_it_has_started(
    tmp_path, fake_ray, monkeypatch, started
):
    fake_ray.nodes = {1: A}
    monkeypatch.setattr(ray_pool, "DRAIN_SECONDS", 0.0)
    pool = pool_of(tmp_path, 1)
    for _ in range(2 if started else 1):  # it is placed, and started
        pool._actors.apply(pool._actors.wait())
    assert pool._actors.handles[0].started == started
    monkeypatch.setattr(ray_pool, "draining_node_ids", lambda: {A})
    monkeypatch.setattr(places, "draining_node_ids", lambda: {A})
    found = list(mapped(pool, "train", None, {(client,): 1.0 for client in range(6)}))
    assert clients_of(found) == [(client,) for client in range(6)] and fake_ray.begun == 2


@pytest.mark.parametrize("workers", [2, 3])
def test_actors_of_a_node_that_is_drained_hand_over_and_go_to_another(
    tmp_path, fake_ray, monkeypatch, workers
):
    drain_the_first_node(fake_ray, monkeypatch)
    pool = pool_on(tmp_path, {A: workers, B: workers}, *[{B: workers, C: workers}] * 9)
    costs = {(client,): 1.0 for client in range(40)}
    found = list(mapped(pool, "train", None, costs))
    assert clients_of(found) == sorted(costs)
    worked = [item for _, items in fake_ray.worked for item in items]
    assert sorted(worked) == sorted(costs)  # nothing was taken back
    assert fake_ray.begun == 3 and fake_ray.left == [1]
    assert [place.node for place in pool._places.by_actor.values()] == [C, B]


def test_a_foreman_that_dies_again_and_again_stops_the_run(tmp_path, fake_ray):
    def call(items: list[tuple[int, ...]], give: bool) -> Any:
        raise ActorDiedError

    fake_ray.call = call
    pool = pool_on(tmp_path, {A: 2, B: 2})
    with pytest.raises(MachineError, match=rf"^a foreman died {MAX_DEATHS} times in a row: "):
        list(mapped(pool, "train", None, {(0,): 1.0}))


def test_a_foreman_that_says_that_its_node_is_lost_is_replaced(tmp_path, fake_ray):
    """It may say so before Ray ends its process, and before the head has noticed."""
    left = iter(range(2 * MAX_DEATHS))

    def call(items: list[tuple[int, ...]], give: bool) -> Any:
        if next(left, None) is not None:
            error = NodeLostError("Ray has ended on this machine")
            raise RayTaskError("call", str(error), error, "actor", 1, "127.0.0.1")
        return 0.1, None

    fake_ray.call = call
    found = list(
        mapped(
            pool_on(tmp_path, {A: 2, B: 2}), "train", None, {(client,): 1.0 for client in range(9)}
        )
    )
    assert clients_of(found) == [(client,) for client in range(9)]
    assert fake_ray.begun == 2 + 2 * MAX_DEATHS


def test_a_lost_foreman_is_replaced_when_the_head_answers_again(tmp_path, fake_ray, monkeypatch):
    monkeypatch.setattr(actors, "WATCH_SECONDS", 0.0)
    fake_ray.call = dies(1, [])
    pool = pool_on(tmp_path, {A: 2, B: 2})
    pool.describe()
    silent = [True] * 3
    monkeypatch.setattr(FakeCluster, "check", lambda self: not (silent and silent.pop()))

    def draining() -> set[str]:
        assert not silent, "the head was asked"
        return set()

    monkeypatch.setattr(places, "draining_node_ids", draining)
    found = list(mapped(pool, "train", None, {(client,): 1.0 for client in range(9)}))
    assert clients_of(found) == [(client,) for client in range(9)] and fake_ray.begun == 3


@pytest.mark.parametrize(("room", "begun"), [({B: 2, C: 2}, 3), ({B: 2}, 2)])
def test_a_foreman_whose_node_is_lost_goes_to_another_node(
    tmp_path, fake_ray, monkeypatch, room, begun
):
    """Where there is none, the other foreman goes on alone."""
    calls: list[Any] = []
    fake_ray.call = dies(1, calls)
    pool = pool_on(tmp_path, {A: 2, B: 2}, *[room] * 9)
    pool.describe()
    monkeypatch.setattr(FakeCluster, "lost", lambda self, node: node == A)
    monkeypatch.setattr(places, "alive_node_ids", lambda: {B, C})
    costs = {BAD: 9.0, **{(client,): 1.0 for client in range(5) if (client,) != BAD}}
    found = list(mapped(pool, "train", None, costs))
    assert clients_of(found) == [(client,) for client in range(5)]
    assert fake_ray.begun == begun and len(calls) == 1
    assert pool._actors.handles[0].vacant == (begun == 2)


@pytest.mark.parametrize("actors", ["auto", 8])
def test_workers_of_a_lost_node_are_made_up_for_on_several(tmp_path, fake_ray, monkeypatch, actors):
    monkeypatch.setattr(ray_pool, "JOIN_SECONDS", 0.0)
    fake_ray.call = dies(1, [])
    room = {B: 4, C: 2, D: 2}
    plans = [{A: 4, B: 4}, *[room] * 9]
    pool = pool_on(tmp_path, *plans, **{"engine.actors": actors})
    pool.describe()
    monkeypatch.setattr(FakeCluster, "lost", lambda self, node: node == A)
    monkeypatch.setattr(places, "alive_node_ids", lambda: {B, C, D})
    for _ in range(4):
        costs = {BAD: 9.0, **{(client,): 1.0 for client in range(9) if (client,) != BAD}}
        found = list(mapped(pool, "train", None, costs))
        assert clients_of(found) == sorted(costs)
    there = pool._places.by_actor.values()
    assert sorted((place.node, place.workers) for place in there) == sorted(room.items())


def without_room(first: int, last: int) -> Callable[[int], dict[str, Any]]:
    """Return a start at which the foremen of these processes find no room for their workers."""

    def start(process: int) -> dict[str, Any]:
        if first <= process <= last:
            error = NoActorError("no node had room")
            raise RayTaskError("start", str(error), error, "actor", 1, "127.0.0.1")
        return {"device": "cpu"}

    return start


def test_foremen_whose_nodes_others_have_taken_are_tried_again_and_again(tmp_path, fake_ray):
    """Nobody has died; the other foreman works on."""
    fake_ray.start = without_room(2, 2 + 2 * MAX_DEATHS)
    costs = {(client,): 1.0 for client in range(40)}
    pool = pool_on(tmp_path, {A: 2, B: 2})
    pool.describe()
    assert clients_of(list(mapped(pool, "train", None, costs))) == [*costs]
    assert fake_ray.begun == 3 + 2 * MAX_DEATHS


def test_foremen_stop_the_run_where_none_has_room(tmp_path, fake_ray):
    fake_ray.start = without_room(1, 100)
    with pytest.raises(NoActorError, match=r"^no node had room$"):
        pool_on(tmp_path, {A: 2, B: 2}).describe()
    assert fake_ray.begun == 3  # one was tried again


@pytest.mark.parametrize("by_node", [{A: 2}, {A: 2, B: 2}], ids=["workers", "foremen"])
def test_actors_that_prepare_data_have_room(tmp_path, fake_ray, monkeypatch, by_node):
    monkeypatch.setattr(actors, "WATCH_SECONDS", 0.0)
    pool = pool_on(tmp_path, by_node)
    wait, pauses = fake_ray.wait, iter(range(5))

    def prepares(references: list[int], **_: Any) -> tuple[list[int], list[int]]:
        if all(handle.about for handle in pool._actors.handles):
            monkeypatch.setattr(actors, "NO_ACTOR_SECONDS", 0.0)
            if next(pauses, None) is not None:
                return [], references
        return wait(references)

    monkeypatch.setattr(fake_ray, "wait", prepares)
    assert len(pool.describe()["actors"]) == 2 and next(pauses, None) is None
