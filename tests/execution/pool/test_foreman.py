"""Foremen on clusters of several nodes: the same bytes as inline, whoever is killed."""

from __future__ import annotations

import os
import pickle
import signal
from time import sleep, time_ns
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION

import raysim
from raysim.api.rules import Upload
from raysim.execution.messages import WorkerResult
from raysim.execution.partial_sum import PartialSum
from raysim.execution.pool.actor import CallReceived
from raysim.execution.pool.foreman import Foreman, _DriverCall
from raysim.execution.pool.ray_pool import DRAIN_SECONDS
from raysim.execution.scheduling.backlog import Answer
from tests.faults.processes import Run, cluster
from tests.tasks import EQUAL, long_settings, make_task, model_of

MANY = (160, 80, 40) * 40
COHORT = round(0.7 * len(MANY))
ENGINE = {"engine.backend": "ray", "engine.actors": 4}


def inline(folder: Any, sizes: tuple[int, ...] = EQUAL, **settings: Any) -> bytes:
    """Return the model bytes of the undisturbed inline run."""
    raysim.run(long_settings(folder, **settings), make_task(sizes))
    return model_of(folder)


def foremen(run: Run) -> list[psutil.Process]:
    """Return the foremen of a run: what Ray started on the nodes of its actors beside them."""
    raylets = {psutil.Process(actor["pid"]).ppid() for actor in run.actors()}
    started = [child for raylet in raylets for child in psutil.Process(raylet).children()]
    return [process for process in started if "Foreman" in " ".join(process.cmdline())]


def test_the_sum_of_a_node_leaves_it_in_six_bytes_a_parameter():
    foreman = Foreman("node", 2, 1.0, 0.0)
    foreman._actors = SimpleNamespace(handles=[])
    for client in range(2):
        each = PartialSum()
        upload = Upload({"model": {"weight": torch.full((100_000,), float(client))}})
        each.add({"client": client}, each.check(upload)(), 1, 2)
        foreman._works["train"].results.append(WorkerResult("worker", {0: each}))
        foreman._collect("train")
    answer = foreman._result("train", Answer(1, 0.0, [(0,), (1,)]))
    assert len(pickle.dumps(answer)) < 610_000
    (sent,) = [result.sums[0] for result in answer.results if result.sums]
    assert sent.reduced(2, {}).means["model"]["weight"].unique().tolist() == [0.5]


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "nodes"), [("scaffold", 2), ("fedma", 2), ("fedavg", 3), ("fedbuff", 2)], ids=str
)
def test_a_run_on_several_nodes_has_the_bytes_of_the_inline_run(tmp_path, method, nodes):
    settings = {"method.name": method, "rounds": 3}
    engine = ENGINE | {"engine.actors": 2 * nodes}
    with (
        cluster(nodes, cores=2) as found,
        Run(tmp_path / "run", EQUAL, ["2.end"], address=found.address, **engine, **settings) as run,
    ):
        run.until("2.end")
        assert len(run.actors()) == 2 * nodes and len(foremen(run)) == nodes
        assert {actor["node"] for actor in run.actors()} == {
            node.node_id for node in found.worker_nodes
        }
        run.release()
        assert run.end() == (0, "")
    assert model_of(tmp_path / "run") == inline(tmp_path / "inline", **settings)


@pytest.mark.full
def test_a_foreman_killed_in_mid_round_costs_what_it_held(tmp_path):
    settings = {"method.name": "scaffold", "rounds": 8}
    moments = ["2.mid", "3.end"]
    with (
        cluster(2, cores=2) as found,
        Run(tmp_path / "run", EQUAL, moments, address=found.address, **ENGINE, **settings) as run,
    ):
        run.until("2.mid")
        os.kill(foremen(run)[0].pid, signal.SIGKILL)
        run.go()
        run.until("3.end")
        assert any(event.startswith("renewed") for event in run.events)
        run.release()
        assert run.end() == (0, "")
    assert run.rounds == [*range(1, 9)]
    assert model_of(tmp_path / "run") == inline(tmp_path / "inline", **settings)


@pytest.mark.full
def test_a_node_with_a_foreman_is_lost_and_another_joins(tmp_path):
    settings = {"method.name": "scaffold", "rounds": 60}
    moments = ["2.mid", *(f"{number}.end" for number in range(3, 60))]
    with (
        cluster(2, cores=2) as found,
        Run(tmp_path / "run", EQUAL, moments, address=found.address, **ENGINE, **settings) as run,
    ):
        run.until("2.mid")
        lost, _ = found.worker_nodes
        found.remove_node(lost, allow_graceful=False)
        joined = found.add_node(num_cpus=2, object_store_memory=150 * 2**20)
        for number in range(3, 60):
            run.go()
            run.until(f"{number}.end")
            if joined.node_id in {actor["node"] for actor in run.actors()}:
                break
            sleep(1)  # it is still starting
        else:
            pytest.fail("no actor came to the new node")
        run.release()
        assert run.end() == (0, "")
    assert model_of(tmp_path / "run") == inline(tmp_path / "inline", **settings)


@pytest.mark.full
@pytest.mark.parametrize("method", ["scaffold", "fedbuff"])
def test_a_node_that_joins_one_that_was_alone_has_a_foreman_as_that_one_has(tmp_path, method):
    settings = {"method.name": method, "rounds": 60}
    moments = [f"{number}.end" for number in range(1, 60)]
    engine = {"engine.backend": "ray"}  # as many actors as there are cores
    with (
        cluster(1, cores=2) as found,
        Run(tmp_path / "run", EQUAL, moments, address=found.address, **engine, **settings) as run,
    ):
        run.until("1.end")
        assert len(run.actors()) == 2 and not foremen(run)
        before = {actor["pid"] for actor in run.actors()}
        found.add_node(num_cpus=2, object_store_memory=150 * 2**20)
        nodes = {node.node_id for node in found.worker_nodes}
        for number in range(2, 60):
            run.go()
            run.until(f"{number}.end")
            if {actor["node"] for actor in run.actors()} == nodes and len(run.actors()) == 4:
                break
            sleep(1)  # they are still starting
        else:
            pytest.fail("no four actors on two nodes")
        assert len(foremen(run)) == 2
        assert before.isdisjoint(actor["pid"] for actor in run.actors())
        run.release()
        assert run.end() == (0, "")
    assert run.rounds == [*range(1, 61)]
    assert model_of(tmp_path / "run") == inline(tmp_path / "inline", **settings)


@pytest.mark.full
def test_a_node_that_ray_drains_hands_over_before_it_is_left(tmp_path):
    """Its deadline is far off: what is seen is done because it is drained."""
    settings = {"method.name": "scaffold", "rounds": 3, "local.epochs": 30}
    moments = ["2.mid", "2.end"]
    with (
        cluster(2, cores=2) as found,
        Run(tmp_path / "run", MANY, moments, address=found.address, **ENGINE, **settings) as run,
    ):
        run.until("2.mid")
        drained, kept = found.worker_nodes
        assert {actor["node"] for actor in run.actors()} == {drained.node_id, kept.node_id}
        head = GcsClient(address=found.address)
        until = (time_ns() // 10**6) + 600_000
        assert head.drain_node(drained.node_id, DRAIN_NODE_REASON_PREEMPTION, "", until)[0]
        sleep(DRAIN_SECONDS)
        run.go()
        run.until("2.end")
        assert {actor["node"] for actor in run.actors()} == {kept.node_id}
        left = [int(event.split()[-1]) for event in run.events if event.startswith("taken back")]
        assert max(left) > COHORT // 3  # clients of the round were to be begun when it was left
        run.release()
        assert run.end() == (0, "")
    assert all(event.startswith(("taken back 0 ", "renewed")) for event in run.events)
    assert model_of(tmp_path / "run") == inline(tmp_path / "inline", MANY, **settings)


def test_an_order_that_a_foreman_cannot_take_has_an_answer():
    found: Any = Foreman("a" * 56, 2, 1.0, 0.0)
    found._actors = SimpleNamespace(next_event=lambda wakeup: CallReceived())
    waiting = SimpleNamespace(remote=lambda: None)
    found._this_actor = SimpleNamespace(wait_for_call=waiting)
    order = _DriverCall("train", [((1,), [(0,)])], hand_over=False)  # without directions
    found._calls.put(order)
    found._run()
    with pytest.raises(ValueError, match="unpack"):
        order.answer.result(timeout=0)
