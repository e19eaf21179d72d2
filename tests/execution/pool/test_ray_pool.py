"""The pool's rules on lost and failing actors, against a Ray that starts no process.

A client whose actor dies MAX_DEATHS times is given up, and so is a pool whose actors die as often
while they start; a node that is lost is the fault of no client. A client that failed in one process
is tried again in another.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from ray.exceptions import ActorDiedError, RaySystemError, RayTaskError

from raysim.errors import MachineError
from raysim.execution.messages import FailedItem
from raysim.execution.pool import ray_pool
from raysim.execution.pool.actors import MAX_DEATHS
from raysim.process.exits import interruptible
from tests.execution.pool.fake_ray import (
    BAD,
    FakeCluster,
    FakeRay,
    clients_of,
    dies,
    mapped,
    pool_of,
)


def results(tmp_path: Any, clients: int = 6, actors: int = 1) -> tuple[list[Any], list[int]]:
    """Return what a pool hands over for as many clients, and what it says of its progress."""
    progress: list[int] = []
    costs = {(client,): 1.0 for client in range(clients)}
    return list(mapped(pool_of(tmp_path, actors), "train", None, costs, progress.append)), progress


@pytest.mark.parametrize("actors", [1, 3])
def test_every_client_is_handed_over_once(tmp_path, fake_ray, actors):
    found, progress = results(tmp_path, clients=40, actors=actors)
    assert clients_of(found) == [(client,) for client in range(40)]
    assert fake_ray.begun == actors and progress == sorted(progress) and progress[-1] == 40


def test_a_client_is_given_up_after_as_many_deaths_as_max_deaths_says(tmp_path, fake_ray):
    calls: list[Any] = []
    fake_ray.call = dies(100, calls)
    found, _ = results(tmp_path)
    assert len(calls) == MAX_DEATHS and calls[1:] == [[BAD]] * (MAX_DEATHS - 1)
    (failed,) = (each for each in found if isinstance(each, FailedItem))
    assert failed.item == BAD
    assert failed.cause.startswith(f"its worker died {MAX_DEATHS} times: ")
    assert clients_of(found) == [(client,) for client in range(6) if client != 3]
    assert fake_ray.begun == 1 + MAX_DEATHS


def test_a_client_that_is_survived_in_the_end_is_not_given_up(tmp_path, fake_ray):
    fake_ray.call = dies(MAX_DEATHS - 1, [])
    found, _ = results(tmp_path)
    assert clients_of(found) == [(client,) for client in range(6)]


def test_a_node_that_is_lost_is_no_client_s_fault(tmp_path, fake_ray, monkeypatch):
    monkeypatch.setattr(FakeCluster, "nodes_lost", True)
    fake_ray.call = dies(2 * MAX_DEATHS, [])
    found, _ = results(tmp_path)
    assert clients_of(found) == [(client,) for client in range(6)]
    assert fake_ray.begun == 1 + 2 * MAX_DEATHS


def test_actors_that_die_while_they_start_stop_the_run(tmp_path, fake_ray):
    def start(process: int) -> Any:
        raise ActorDiedError

    fake_ray.start = start
    message = rf"^an actor died {MAX_DEATHS} times in a row while it started: "
    with pytest.raises(MachineError, match=message):
        results(tmp_path)
    assert fake_ray.begun == MAX_DEATHS


def test_a_call_that_raises_costs_the_actor(tmp_path, fake_ray):
    """A broken CUDA context fails every later call of its process."""
    broken = iter([True])

    def call(items: list[tuple[int, ...]], give: bool) -> Any:
        if next(broken, False):
            error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
            raise RayTaskError("call", str(error), error, "actor", 1, "127.0.0.1")
        return 0.1, None

    fake_ray.call = call
    found, _ = results(tmp_path, actors=2)
    assert clients_of(found) == [(client,) for client in range(6)]
    assert fake_ray.begun == 3


@pytest.mark.parametrize("actors", [1, 2])
def test_actors_that_fail_at_every_call_are_renewed_so_often_and_no_more(
    tmp_path, fake_ray, actors
):
    def call(items: list[tuple[int, ...]], give: bool) -> Any:
        raise ActorDiedError

    fake_ray.call = call
    found, _ = results(tmp_path, clients=4, actors=actors)
    assert sorted(each.item for each in found) == [(client,) for client in range(4)]
    assert fake_ray.begun <= actors + 4 * MAX_DEATHS


def again(pool: ray_pool.ActorPool, failed_at: dict[tuple[int, ...], str]) -> list[Any]:
    """Return what a pool hands over for items that failed."""
    return list(mapped(pool, "train", None, dict.fromkeys(failed_at, 1.0), failed_at=failed_at))


@pytest.mark.parametrize("actors", [2, 3])
def test_a_client_that_failed_is_tried_in_another_process(tmp_path, fake_ray, actors):
    pool = pool_of(tmp_path, actors)
    pool.describe()
    failed_at = {(client,): f"here {client % actors + 1}" for client in range(12)}
    assert clients_of(again(pool, failed_at)) == sorted(failed_at)
    assert fake_ray.begun == actors
    for process, items in fake_ray.worked:
        assert all(failed_at[item] != f"here {process}" for item in items)


def test_the_only_actor_is_renewed_for_a_client_that_failed(tmp_path, fake_ray):
    pool = pool_of(tmp_path, 1)
    pool.describe()
    assert clients_of(again(pool, {BAD: "here 1"})) == [BAD]
    assert fake_ray.begun == 2 and fake_ray.worked == [(2, [BAD])]


def test_an_actor_at_which_clients_fail_in_a_row_is_renewed(tmp_path, fake_ray):
    fake_ray.failing = {1, 3}
    pool = pool_of(tmp_path, 2)
    costs = {(client,): 1.0 for client in range(8)}
    list(mapped(pool, "train", None, costs))
    assert fake_ray.begun == 2
    again(pool, {BAD: "here 1"})
    assert fake_ray.begun == 3
    assert fake_ray.worked[-1] == (2, [BAD])  # or process 3, were it there first
    again(pool, {BAD: "here 2"})
    assert fake_ray.begun == 3 and fake_ray.worked[-1] == (3, [BAD])
    again(pool, {BAD: "here 2"})
    assert fake_ray.begun == 4  # once for each pass, not for ever


def test_an_actor_is_renewed_where_nobody_else_can_be_had(tmp_path, fake_ray, monkeypatch):
    """The other actor has no node."""
    fake_ray.placed = 1
    monkeypatch.setattr(ray_pool, "START_SECONDS", 0.0)
    pool = pool_of(tmp_path, 2)
    pool.describe()
    fake_ray.placed = 3
    assert clients_of(again(pool, {BAD: "here 1"})) == [BAD]
    assert fake_ray.worked == [(3, [BAD])]


@pytest.mark.parametrize(("ends", "ended"), [("error", 2), ("signal", 3)])
def test_a_pool_that_cannot_start_ends_its_actors(tmp_path, fake_ray, monkeypatch, ends, ended):
    """In a user's own Ray session, others would wait for their cores."""

    def begin(*arguments: Any) -> Any:
        if fake_ray.begun == 2 and ends == "error":
            raise RaySystemError("no answer")
        if fake_ray.begun == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return FakeRay._actor(fake_ray, *arguments)

    monkeypatch.setattr(fake_ray, "_actor", begin)
    with interruptible(), pytest.raises((RaySystemError, KeyboardInterrupt)):
        pool_of(tmp_path, 5)
    assert fake_ray.killed == fake_ray.begun == ended
