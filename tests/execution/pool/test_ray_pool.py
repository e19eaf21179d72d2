"""The pool's rules on lost and failing actors, against a Ray that starts no process.

A client whose actor dies MAX_DEATHS times is given up, and so is a pool whose actors die as often
while they start; a node that is lost is the fault of no client. A client that failed in one process
is tried again in another.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray.exceptions import ActorDiedError, RaySystemError, RayTaskError

from raysim.core.errors import MachineError
from raysim.core.exits import interruptible
from raysim.execution.base import Call, unnoticed
from raysim.execution.cluster_health import NodeLostError
from raysim.execution.messages import Directions, FailedItem, WorkerResult
from raysim.execution.pool import actor, actors, broadcasts, foreman, places, ray_pool
from raysim.execution.pool.actors import MAX_DEATHS, NoActorError
from raysim.execution.resources import ActorPlan
from raysim.execution.scheduling.holding import AT_ONCE
from raysim.execution.scheduling.line import HEAD_START
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
        number = next(self._numbers)
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


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray_pool, "ray", fake)
    monkeypatch.setattr(actor, "ray", fake)
    monkeypatch.setattr(actors, "ray", fake)
    monkeypatch.setattr(foreman, "ray", fake)
    monkeypatch.setattr(broadcasts, "ray", fake)
    monkeypatch.setattr(places, "alive_node_ids", lambda: {A, B, C, D, HERE})
    monkeypatch.setattr(ray_pool, "draining_node_ids", set)
    monkeypatch.setattr(places, "draining_node_ids", set)
    monkeypatch.setattr(actors, "ClusterHealth", FakeCluster)
    monkeypatch.setattr(ray_pool, "get_current_placement_group", lambda: None)
    return fake


def make_pool(tmp_path: Any, actors: Callable[[], int], **overrides: Any) -> ray_pool.ActorPool:
    spec: Any = SimpleNamespace(settings=make_settings(tmp_path, **overrides))
    return ray_pool.ActorPool(spec, lambda: ActorPlan(actors(), 1.0, 0.0), Stopwatch(False))


def pool_of(tmp_path: Any, actors: int) -> ray_pool.ActorPool:
    return make_pool(tmp_path, lambda: actors)


def mapped(
    pool: Any, call: Call, message: Any, costs: Any, on_done: Any = unnoticed, **more: Any
) -> Any:
    """Submit items to a pool; return its results."""
    pool.submit(call, message, costs, **more)
    return pool.results(call, on_done)


def results(tmp_path: Any, clients: int = 6, actors: int = 1) -> tuple[list[Any], list[int]]:
    """Return what a pool hands over for as many clients, and what it says of its progress."""
    progress: list[int] = []
    costs = {(client,): 1.0 for client in range(clients)}
    return list(mapped(pool_of(tmp_path, actors), "train", None, costs, progress.append)), progress


def clients_of(found: list[Any]) -> list[tuple[int, ...]]:
    return sorted(item for each in found if isinstance(each, FakeResult) for item in each.items)


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


def test_an_order_that_a_foreman_cannot_take_has_an_answer():
    found: Any = foreman.Foreman(A, 2, 1.0, 0.0)
    found._actors = SimpleNamespace(next_event=lambda wakeup: actor.OrderReceived())
    waiting = SimpleNamespace(remote=lambda: None)
    found._this_actor = SimpleNamespace(wait_for_order=waiting)
    order = foreman._Order("train", [((1,), [(0,)])], hand_over=False)  # without directions
    found._orders.put(order)
    found._run()
    with pytest.raises(ValueError, match="unpack"):
        order.answer.result(timeout=0)


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


def test_how_long_sums_are_held_follows_what_reading_and_adding_up_takes(
    tmp_path, fake_ray, monkeypatch
):
    """They are held for fifty times as long; evaluations, whose results are small, count apart."""
    clock, told, put, get = [0.0], [], fake_ray.put, fake_ray.get
    reading = {"seconds": 0.0}

    def slow_get(reference: int) -> Any:
        clock[0] += reading["seconds"]
        return get(reference)

    monkeypatch.setattr(ray_pool, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(actors, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(fake_ray, "put", lambda value: (told.append(value), put(value))[1])
    monkeypatch.setattr(fake_ray, "get", slow_get)
    pool = pool_on(tmp_path, *[{A: 2, B: 2}] * 99)
    pool.describe()
    calls: list[tuple[Call, float, float]] = [
        ("train", 1.0, 0.5),
        ("evaluate", 0.0, 0.0),
        ("train", 1.0, 0.5),
    ]
    for call, reading["seconds"], adding in calls:
        for _ in mapped(pool, call, None, {(0,): 1.0}):
            clock[0] += adding
    held = [value.hold_seconds for value in told if isinstance(value, Directions)]
    assert held == pytest.approx([10.0, 10.0, 75.0])


def test_an_evaluation_does_not_change_how_long_a_foreman_s_workers_hold_sums(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(foreman, "perf_counter", lambda: clock[0])
    found: Any = foreman.Foreman(A, 4, 1.0, 0.0)
    found._actors = SimpleNamespace(renew_failing=lambda failed_at: {})
    monkeypatch.setattr(foreman.ray, "get", lambda reference: Directions({}, {}, 10.0))
    held = []
    calls: list[tuple[Call, float]] = [("train", 1.5), ("evaluate", 0.0), ("train", 1.5)]
    for call, seconds in calls:
        found._directed(call, call)
        held.append(found._backlogs[call].schedule.hold_seconds)
        adding = partial(lambda each, *_: clock.append(clock.pop() + each), seconds / 3)
        monkeypatch.setattr(foreman, "merge_sums", adding)
        found._works[call].reading = seconds * 2 / 3
        found._works[call].results.append(WorkerResult("here 1"))
        found._collect(call)
    assert held == pytest.approx([10.0, 10.0, 75.0])


def lined_up(clients: Iterable[int]) -> dict[str, Any]:
    """Return items with places, the larger numbers first."""
    items = [(client,) for client in clients]
    return {"costs": dict.fromkeys(items, 1.0), "due": {item: -item[0] for item in items}}


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
