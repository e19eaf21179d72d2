"""Nodes that join have actors, or a foreman of several, against a Ray that starts no process."""

from __future__ import annotations

import pytest

from raysim.execution.pool import ray_pool
from raysim.execution.scheduling.holding import AT_ONCE
from tests.execution.pool.fake_ray import (
    HERE,
    A,
    B,
    C,
    clients_of,
    lined_up,
    make_pool,
    mapped,
    pool_on,
    widths,
)


@pytest.mark.parametrize(("actors", "begun"), [("auto", [1, 3, 3]), (1, [1, 1, 1])])
def test_nodes_that_join_get_actors_unless_their_number_is_set(
    tmp_path, fake_ray, monkeypatch, actors, begun
):
    monkeypatch.setattr(ray_pool, "JOIN_SECONDS", 0.0)
    room = iter([1, 3, 2])  # for actors: at first, after a node has joined, after one is lost
    pool = make_pool(tmp_path, lambda: next(room), **{"engine.actors": actors})
    found, progress = [fake_ray.begun], [0]
    for _ in range(2):
        list(mapped(pool, "train", None, {(client,): 1.0 for client in range(9)}, progress.append))
        assert progress[-1] == 9
        found.append(fake_ray.begun)
    assert found == begun


@pytest.mark.parametrize(
    ("by_node", "expected"),
    [
        ({A: 4}, [1, 1, 1, 1]),
        ({A: 1, B: 1}, [1, 1]),
        ({A: 3, B: 3}, [3, 3]),
        ({A: 3, B: 1}, [3, 1]),
    ],
)
def test_nodes_of_several_workers_have_a_foreman_where_there_are_several_nodes(
    tmp_path, fake_ray, by_node, expected
):
    pool = pool_on(tmp_path, by_node)
    assert widths(pool) == expected
    costs = {(client,): 1.0 for client in range(40)}
    found = list(mapped(pool, "train", None, costs))
    assert clients_of(found) == sorted(costs) and fake_ray.begun == len(expected)


def test_a_node_that_joins_has_a_foreman(tmp_path, fake_ray, monkeypatch):
    monkeypatch.setattr(ray_pool, "JOIN_SECONDS", 0.0)
    pool = pool_on(tmp_path, {HERE: 2}, {HERE: 2, B: 2}, {HERE: 2, B: 2, C: 1})
    pool.describe()
    found = []
    for _ in range(2):
        list(mapped(pool, "train", None, {(client,): 1.0 for client in range(9)}, found.append))
        found.append(widths(pool))
    assert [each for each in found if isinstance(each, list)] == [[2, 2], [2, 2, 1]]
    assert fake_ray.begun == 2 + 2 + 1  # the first node's were started anew, once


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ({HERE: 2}, {HERE: 2}, [1, 1]),
        ({HERE: 1}, {HERE: 1, B: 3}, [1, 3]),
        ({HERE: 2}, {HERE: 1, B: 1}, [1, 1]),
        ({HERE: 2}, {HERE: 1, B: 2}, [1, 1, 1]),
        ({HERE: 4}, {HERE: 2, B: 2}, [1, 1, 1, 1]),
        ({HERE: 2}, {HERE: 2, B: 1}, [2, 1]),
    ],
)
@pytest.mark.parametrize("in_group", [False, True])
def test_actors_are_started_anew_only_for_a_foreman_of_several(
    tmp_path, fake_ray, monkeypatch, first, then, expected, in_group
):
    monkeypatch.setattr(ray_pool, "JOIN_SECONDS", 0.0)
    if in_group:  # a trial's: its nodes are its own
        monkeypatch.setattr(ray_pool, "get_current_placement_group", lambda: "group")
        expected = [1] * max(sum(first.values()), sum(then.values()))
    pool = pool_on(tmp_path, first, then)
    pool.describe()
    costs = {(client,): 1.0 for client in range(9)}
    assert clients_of([*mapped(pool, "train", None, costs)]) == [*costs]
    assert widths(pool) == expected
    anew = sum(first.values()) if max(expected) > 1 and first[HERE] > 1 else 0
    assert fake_ray.begun == anew + len(expected)


def test_clients_at_work_when_a_node_joins_are_trained_once_more(tmp_path, fake_ray, monkeypatch):
    """Those of asynchronous rounds; what was handed over before counts, and the line goes on."""
    monkeypatch.setattr(ray_pool, "JOIN_SECONDS", 0.0)
    pool = pool_on(tmp_path, {HERE: 2}, {HERE: 2}, *[{HERE: 2, B: 2}] * 9)
    pool.describe()
    pool.submit("train", "a", **lined_up(range(40)))
    training = pool.results("train")
    found = [next(training)]
    costs = {(0, batch): 1.0 for batch in range(5)}
    assert clients_of([*mapped(pool, "evaluate", "b", costs)]) == [*costs]
    assert widths(pool) == [2, 2] and fake_ray.begun == 4
    assert pool._schedules["train"].hold_seconds == AT_ONCE
    found += training
    assert clients_of(found) == [(client,) for client in range(40)]
    anew = [item for process, own in fake_ray.worked if process > 2 for item in own]
    assert {*anew[-10:]} < {(client,) for client in range(20)}  # the larger numbers came first


def test_a_foreman_that_joins_is_told_of_clients_that_had_come_before(
    tmp_path, fake_ray, monkeypatch
):
    monkeypatch.setattr(ray_pool, "JOIN_SECONDS", 0.0)
    pool = pool_on(tmp_path, {HERE: 1}, {HERE: 1}, *[{HERE: 1, B: 2}] * 9)
    pool.describe()
    pool.submit("train", "a", **lined_up(range(40)))
    costs = {(0, batch): 1.0 for batch in range(5)}
    assert clients_of([*mapped(pool, "evaluate", "b", costs)]) == [*costs]
    assert widths(pool) == [1, 2]
    assert clients_of([*pool.results("train")]) == [(client,) for client in range(40)]
    by_foreman = [item for process, items in fake_ray.worked for item in items if process == 2]
    assert by_foreman and {fake_ray.told[item] for item in by_foreman} == {1}
