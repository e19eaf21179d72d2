"""Clients that come while others train, and evaluations beside them."""

from __future__ import annotations

from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from raysim.execution.messages import FailedItem
from raysim.execution.pool import ray_pool
from raysim.execution.pool.actors import MAX_DEATHS
from raysim.execution.scheduling.line import HEAD_START
from tests.execution.pool.fake_ray import (
    BAD,
    HERE,
    clients_of,
    dies,
    lined_up,
    mapped,
    pool_of,
    pool_on,
)


@pytest.mark.parametrize("by_node", [{HERE: 1}, {HERE: 3}], ids=str)
def test_more_clients_may_come_while_others_train(tmp_path, fake_ray, by_node):
    """Each with its own message, and in any order of coming those are first that are first."""
    pool = pool_on(tmp_path, by_node)
    pool.submit("train", "a", **lined_up(range(20)))
    results = pool.results("train")
    found = [next(results)]
    pool.submit("train", "b", **lined_up(range(20, 40)))
    found += pool.results("train")
    assert clients_of(found) == [(client,) for client in range(40)]
    first, second = ({fake_ray.messages[client + n,] for client in range(20)} for n in (0, 20))
    assert len(first) == len(second) == 1 and first != second
    worked = [item for _, items in fake_ray.worked for item in items]
    assert {*worked[-10:]} < {(client,) for client in range(20)}  # (39,) to (20,) came before
    assert len(found) > 5 and not any(work.messages for work in pool._works.values())


@pytest.mark.parametrize("by_node", [{HERE: 1}, {HERE: 3}], ids=str)
def test_long_clients_start_before_others_that_are_due_before_them(tmp_path, fake_ray, by_node):
    """The workers of all nodes count; a short one comes when it is due."""
    pool, items = pool_on(tmp_path, by_node), [(client,) for client in range(12)]
    costs = {item: 5.0 if item[0] >= 10 else 1.0 for item in items}
    workers = sum(by_node.values())
    head = HEAD_START * workers * 4.0  # what the long ones are ahead of the short ones
    due = {item: 2 * item[0] * head / 20 for item in items}
    pool.submit("train", "a", costs, due=due)
    list(pool.results("train"))
    worked = [item for _, own in fake_ray.worked for item in own]
    assert worked.index((10,)) <= 3 and worked[-1][0] < 10


def test_an_evaluation_goes_on_beside_clients_that_train(tmp_path, fake_ray):
    """Its results are its own, and those of the clients are kept; who dies in one is counted."""
    calls: list[Any] = []
    fake_ray.call = dies(MAX_DEATHS, calls)
    pool = pool_of(tmp_path, 2)
    pool.submit("train", "a", **lined_up(range(12)))
    costs = {(0, batch): 1.0 for batch in range(5)}
    assert clients_of([*mapped(pool, "evaluate", "b", costs)]) == [*costs]
    found = [*pool.results("train")]
    assert clients_of(found) == [(client,) for client in range(12) if client != 3]
    assert [each.item for each in found if isinstance(each, FailedItem)] == [BAD]
    assert len(calls) == MAX_DEATHS


def test_who_dies_in_an_evaluation_is_no_client_s_fault(tmp_path, fake_ray):
    """The clients that the actor was to train next go to the new one."""
    calls: list[Any] = []

    def call(items: list[tuple[int, ...]], give: bool) -> Any:
        if (0, 0) in items:
            calls.append(items)
            raise ActorDiedError
        return 0.1, None

    fake_ray.call = call
    pool = pool_of(tmp_path, 1)
    pool.submit("train", "a", **lined_up(range(30)))
    (failed,) = mapped(pool, "evaluate", "b", {(0, 0): 1.0})
    assert failed.item == (0, 0) and len(calls) == MAX_DEATHS
    assert clients_of([*pool.results("train")]) == [(client,) for client in range(30)]


def test_a_client_behind_an_evaluation_is_no_suspect_of_its_death(tmp_path, fake_ray):
    """It has as many deaths of its own before it is given up as any other."""
    left = {(0, 0): 1, BAD: MAX_DEATHS - 1}

    def call(items: list[tuple[int, ...]], give: bool) -> Any:
        for item in items:
            left[item] -= 1
            if left[item] >= 0:
                raise ActorDiedError
        return 0.1, None

    fake_ray.call = call
    pool = pool_of(tmp_path, 1)
    pool.describe()
    pool.submit("evaluate", "b", {(0, 0): 1.0})
    pool.submit("train", "a", {BAD: 1.0})
    assert clients_of([*pool.results("train")]) == [BAD]
    assert clients_of([*pool.results("evaluate")]) == [(0, 0)]
    assert fake_ray.begun == 1 + MAX_DEATHS


def test_who_describes_the_pool_waits_for_no_client_in_vain(tmp_path, fake_ray, monkeypatch):
    """The second actor has no node yet; what the first hands over meanwhile is kept."""
    monkeypatch.setattr(ray_pool, "START_SECONDS", 0.1)
    monkeypatch.setattr(fake_ray, "waits", -(10**9))
    fake_ray.placed = 1
    pool = pool_of(tmp_path, 2)
    pool.submit("train", "a", **lined_up(range(12)))
    pool.describe()
    assert clients_of([*pool.results("train")]) == [(client,) for client in range(12)]


def test_a_client_that_failed_is_tried_elsewhere_while_others_train(tmp_path, fake_ray):
    """The only actor is renewed, and what it had is done by the new one."""
    pool = pool_of(tmp_path, 1)
    pool.submit("train", "a", **lined_up(range(12)))
    results = pool.results("train")
    found = [next(results)]
    pool.submit("train", "b", {(20,): 1.0}, {(20,): "here 1"}, {(20,): 0})
    found += pool.results("train")
    assert clients_of(found) == [*[(client,) for client in range(12)], (20,)]
    assert fake_ray.begun == 2 and 1 not in [at for at, items in fake_ray.worked if (20,) in items]
