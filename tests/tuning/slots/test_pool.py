"""Slots on a cluster that is busy, grows, and loses nodes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.exceptions import RayActorError, RaySystemError, RayTaskError

import raysim
from raysim.errors import MachineError
from raysim.execution.cluster_health import NodeLostError
from raysim.execution.resources import Node
from raysim.process.exits import interruptible
from raysim.tuning.slots import fitting, slot
from raysim.tuning.slots import pool as slots
from raysim.tuning.slots.queue import RunQueue, run_in_slots
from raysim.tuning.slots.report import Report, SlotLost
from tests.tasks import make_settings


class FakeCluster:
    """Nodes of some CPUs, on which each actor takes one, and what slots ask of Ray."""

    def __init__(self, **nodes: int) -> None:
        self.nodes, self.busy, self.slow = dict(nodes), 0, False
        self.actors: list[FakeActor] = []
        self.now, self.dying, self.answers, self.grows = 0.0, 0, True, False
        self.deadly = None  # run directory of a run that ends the process of its slot
        self.orders: list[Any] = []
        self.stopped: list[FakeActor] = []
        self.notes: list[str] = []

    def remote(self, cls):
        return self

    def options(self, **options):
        return FakeClass(self)

    def place(self):
        """Place the actors that wait, where there is room."""
        for actor in self.actors:
            for node, cpus in self.nodes.items():
                used = sum(other.on == node for other in self.actors)
                if actor.on is None and used + self.busy < cpus:
                    actor.on = node

    def wait(self, calls, num_returns, timeout):
        self.place()
        done = [call for call in calls if call.actor.on or call.actor.dead]
        done = [] if self.slow else done
        if not done:
            self.now += timeout
        return done[:1], done[1:]

    def get(self, call):
        if call.actor.dead or self.dying:
            self.dying = max(self.dying - 1, 0)
            raise RayActorError
        if call.actor.error:
            raise RayTaskError("advance", "traceback", call.actor.error)
        if call.name == "node":
            return call.actor.on
        if call.name == "stop":
            return self.stopped.append(call.actor)
        (order,) = call.arguments
        self.orders.append(order)
        if order and order[0]["out"] == self.deadly:
            raise RayActorError
        return Report(summary={}), self.notes

    def kill(self, actor):
        if actor in self.actors:
            self.actors.remove(actor)

    def lose(self, node):
        """Lose a node with its actors."""
        del self.nodes[node]
        for actor in self.actors:
            actor.dead = actor.dead or actor.on == node

    def alive_nodes(self):
        assert self.answers
        return [Node(cpus, 0) for cpus in self.nodes.values()]

    def available_resources(self):
        return {"CPU": max(sum(self.nodes.values()) - self.busy - len(self.actors), 0)}

    def cluster_resources(self):
        return {"CPU": sum(self.nodes.values())}

    # What `ClusterHealth` tells.

    def check_store(self):
        pass

    def check(self):
        return self.answers

    def silent(self):
        return not self.answers

    def has_process(self, actor):
        return actor.on is not None

    def lost(self, node):
        return node is not None and node not in self.nodes

    def close(self):
        pass


class FakeClass:
    def __init__(self, cluster):
        self.cluster = cluster

    def remote(self, inherited, default_dtype):
        assert default_dtype == torch.get_default_dtype()
        self.cluster.actors.append(FakeActor())
        return self.cluster.actors[-1]


class FakeActor:
    def __init__(self):
        self.on, self.dead, self.error = None, False, None
        for name in ("node", "advance", "stop"):
            setattr(self, name, FakeCall(self, name))


class FakeCall:
    """A method of an actor, and one call of it."""

    def __init__(self, actor, name, *arguments):
        self.actor, self.name, self.arguments = actor, name, arguments

    def remote(self, *arguments):
        return FakeCall(self.actor, self.name, *arguments)


@pytest.fixture
def cluster(monkeypatch):
    found = FakeCluster(a=2)
    for module in (fitting, slot, slots):
        monkeypatch.setattr(module, "ray", found)
    monkeypatch.setattr(slots, "ClusterHealth", lambda: found)
    monkeypatch.setattr(slots, "perf_counter", lambda: found.now)
    for module in (fitting, slots):
        monkeypatch.setattr(module, "alive_nodes", found.alive_nodes)
    for module in (fitting, slots):
        monkeypatch.setattr(module, "autoscaler_runs", lambda: found.grows)
    return found


@pytest.fixture
def make_pool(cluster, tmp_path):
    def make(jobs):
        notes: list[str] = []
        return slots.SlotPool(make_settings(tmp_path), jobs, notes.append), notes

    return make


def waited(pool, times):
    """Wait for reports; return those that came."""
    return [found for found in (pool.wait() for _ in range(times)) if found]


def test_a_busy_cluster_is_said_and_its_free_slots_are_used(make_pool, cluster, tmp_path):
    cluster.busy = 1
    pool, notes = make_pool(None)
    assert len(pool) == 2 and not pool.has_free()
    waited(pool, 1)
    assert pool.has_free()  # it need not wait for the other
    pool.start(0, make_settings(tmp_path), pausing=False)
    assert not pool.has_free() and notes == []
    ((run, report),) = waited(pool, 1)
    assert (run, report.summary) == (0, {})
    pool.release(0, paused=False)
    waited(pool, 3)
    assert cluster.now >= slots.START_SECONDS
    assert notes == [
        "1 of 2 slots have started; the others start when the cluster has room for them (free: 0"
        " of 2 CPUs); meanwhile runs start in the started slots"
    ]
    cluster.busy = 0
    waited(pool, 3)
    pool.start(1, make_settings(tmp_path), pausing=False)
    assert pool.has_free() and len(notes) == 1


def test_slots_that_start_slowly_wait_for_no_room(make_pool, cluster):
    """Their processes are there, and import; one for which there is no room is said."""
    cluster.slow = True
    pool, notes = make_pool(2)
    waited(pool, 6)
    assert cluster.now > 2 * slots.START_SECONDS and len(pool) == 2 and notes == []


def test_slots_grow_with_the_nodes_unless_their_number_is_given(make_pool, cluster):
    pool, _ = make_pool(None)
    fixed, _ = make_pool(1)
    waited(pool, 3)
    cluster.nodes["b"] = 3
    waited(pool, 1)
    waited(fixed, 2)
    assert (len(pool), len(fixed)) == (5, 1)
    waited(pool, 10)
    assert sum(actor.on == "b" for actor in cluster.actors) == 3


def test_an_autoscaler_starts_nodes_for_slots(make_pool, cluster):
    cluster.nodes, cluster.grows = {"a": 0}, True
    asked, _ = make_pool(3)
    assert len(asked) == 3 and asked._plan.cpus == 1
    pool, _ = make_pool(None)
    assert len(pool) == 1
    cluster.nodes["b"] = 5
    waited(pool, 9)
    assert len(pool) == 5 and pool.has_free()


def test_the_trial_of_a_lost_node_comes_back_at_once(make_pool, cluster, tmp_path):
    cluster.nodes["b"] = 1
    pool, _ = make_pool(None)
    waited(pool, 3)
    for run in range(3):
        pool.start(run, make_settings(tmp_path), pausing=False)
    cluster.lose("b")
    reports = dict(waited(pool, 3))
    lost = [run for run, report in reports.items() if isinstance(report, SlotLost)]
    assert {*reports} == {0, 1, 2} and len(lost) == 1
    for run in reports.keys() - {*lost}:
        pool.release(run, paused=False)
    assert sum(actor.on is None for actor in cluster.actors) == 1  # it waits for a node
    cluster.nodes["c"] = 1
    waited(pool, 2)
    assert sum(actor.on == "c" for actor in cluster.actors) == 1
    for run in range(3):
        assert pool.has_free()
        pool.start(run, make_settings(tmp_path), pausing=False)


@pytest.mark.parametrize(("node_lost", "suspicious"), [(False, True), (True, False)])
def test_a_trial_is_suspicious_where_its_node_lives(
    make_pool, cluster, tmp_path, node_lost, suspicious
):
    pool, _ = make_pool(1)
    waited(pool, 1)
    pool.start("run", make_settings(tmp_path), pausing=False)
    cluster.actors[0].dead = True
    if node_lost:
        cluster.lose("a")
    assert waited(pool, 1) == [("run", SlotLost(str(RayActorError()).strip(), suspicious))]


def test_a_slot_that_says_that_its_node_is_lost_has_lost_its_run(make_pool, cluster, tmp_path):
    """It may say so before Ray ends its process, and before the head has noticed."""
    pool, _ = make_pool(1)
    waited(pool, 1)
    pool.start("run", make_settings(tmp_path), pausing=False)
    cluster.actors[0].error = NodeLostError("Ray has ended on this machine")
    lost = SlotLost("Ray has ended on this machine", suspicious=False)
    assert waited(pool, 1) == [("run", lost)]


def test_a_paused_run_goes_on_and_a_stopped_one_frees_its_slot_once_it_has_ended(
    make_pool, cluster, tmp_path
):
    pool, notes = make_pool(1)
    waited(pool, 1)
    cluster.notes = ["a line"]
    pool.start("first", make_settings(tmp_path), pausing=True)
    for _ in range(2):
        ((run, _),) = waited(pool, 1)
        assert run == "first" and not pool.has_free()
    pool.release("first", paused=True)
    assert not pool.has_free() and waited(pool, 1) == []
    assert pool.has_free() and cluster.stopped == cluster.actors
    pool.start("second", make_settings(tmp_path), pausing=False)
    waited(pool, 1)
    assert [order and order[1] for order in cluster.orders] == [True, None, False]
    assert notes == ["a line"]


class Deadly(RunQueue[int]):
    """Runs from 0 on, of which one ends the process of its slot."""

    def __init__(self, folder, runs):
        self.left, self.folder, self.failed = [*range(runs)], folder, []
        self.lost = []

    def remain(self):
        return bool(self.left)

    def next(self):
        return self.left.pop(0) if self.left else None

    def settings(self, run):
        return make_settings(self.folder / str(run))

    def name(self, run):
        return str(run)

    def ended(self, run, report, seconds):
        self.failed += [run] * (report.error is not None)

    def note(self, text):
        self.lost.append(int(text.split(":")[0]))


def test_a_run_that_ends_its_process_is_started_first_and_fails_at_the_third_loss(
    make_pool, cluster, tmp_path
):
    cluster.deadly = str(tmp_path / "1")
    pool, _ = make_pool(1)
    queue = Deadly(tmp_path, 4)
    run_in_slots(pool, queue)
    assert [int(Path(order[0]["out"]).name) for order in cluster.orders] == [0, 1, 1, 1, 2, 3]
    assert queue.failed == [1] and queue.lost == [1, 1]


def test_a_slot_that_cannot_start_stops_the_study(make_pool, cluster):
    cluster.dying = 2
    pool, _ = make_pool(1)
    waited(pool, 3)
    assert pool.has_free()
    cluster.dying = 3
    pool, _ = make_pool(1)
    with pytest.raises(MachineError, match="a slot died 3 times in a row while it started: The"):
        waited(pool, 3)


def test_a_head_that_does_not_answer_is_asked_nothing_more(make_pool, cluster):
    pool, _ = make_pool(None)
    cluster.answers = False
    assert waited(pool, 9) == [] and len(pool) == 2


def test_usage_counts_the_time_that_slots_are_there(make_pool, cluster, tmp_path):
    pool, _ = make_pool(1)
    waited(pool, 1)
    for run in range(2):
        pool.start(run, make_settings(tmp_path), pausing=False)
        waited(pool, 1)
        cluster.now += 3
        pool.release(run, paused=False)
        cluster.now += 1
    assert pool.busy == 3 / 4  # until the last trial started


@pytest.fixture
def groups(cluster, monkeypatch):
    """Return the numbers of the placement groups that were asked for, and of those given back."""
    asked, removed = [], []

    def ask(bundles, bundle_label_selector):
        asked.append(len(asked) + 1)
        return asked[-1]

    monkeypatch.setattr(slots, "placement_group", ask)
    monkeypatch.setattr(slots, "PlacementGroupSchedulingStrategy", lambda *_, **__: None)
    monkeypatch.setattr(slot, "remove_placement_group", removed.append)
    monkeypatch.setattr(FakeClass, "remote", lambda self, *_: FakeActor())
    return asked, removed


@pytest.mark.parametrize("answers", [True, False])
def test_groups_are_given_back_to_a_head_that_answers(cluster, groups, tmp_path, answers):
    pool = slots.SlotPool(make_settings(tmp_path, **{"engine.actors": 1}), 2, print)
    cluster.answers = answers
    pool.close()
    assert groups == ([1, 2], [1, 2] if answers else [])


def test_a_signal_comes_when_all_groups_are_given_back(groups, tmp_path, monkeypatch):
    pool = slots.SlotPool(make_settings(tmp_path, **{"engine.actors": 1}), 3, print)
    asked, removed = groups

    def remove(group):
        removed.append(group)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(slot, "remove_placement_group", remove)
    with interruptible(), pytest.raises(KeyboardInterrupt):
        pool.close()
    assert removed == asked == [1, 2, 3]


@pytest.mark.parametrize("place", ["group", "actor"])
@pytest.mark.parametrize("ends", ["error", "signal"])
def test_groups_are_given_back_where_slots_cannot_start(
    cluster, groups, tmp_path, monkeypatch, place, ends
):
    """In a user's own Ray session, no end of a connection would give them back."""
    asked, removed = groups
    places = {"group": (slots, "placement_group"), "actor": (FakeClass, "remote")}
    owner, name = places[place]
    before, number = getattr(owner, name), 2 if place == "group" else 3

    def end(*arguments, **options):
        if ends == "error" and len(asked) == number:
            raise RaySystemError("no answer")
        found = before(*arguments, **options)
        if len(asked) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(owner, name, end)
    settings = make_settings(tmp_path, **{"engine.actors": 2})
    with interruptible(), pytest.raises((RaySystemError, KeyboardInterrupt)):
        slots.SlotPool(settings, 5, print)
    assert removed == asked == [1, 2, 3][: len(asked)] and len(asked) >= 2


def test_more_slots_than_fit_on_the_gpus(cluster, tmp_path):
    settings = make_settings(tmp_path, **{"engine.gpus_per_actor": 0.5})
    with pytest.raises(raysim.SettingsError, match="at most 0 GPUs are declared on a node"):
        slots.SlotPool(settings, 5, print)
