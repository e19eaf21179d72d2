"""Several nodes: lost and joining ones, and what travels to each."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import ray

import raysim
from raysim.errors import DataError, MachineError
from raysim.execution import cluster_health as nodes_module
from raysim.execution.cluster_health import ClusterHealth
from raysim.execution.pool import actors as pool
from raysim.execution.pool.ray_pool import ActorPool
from raysim.execution.resources import ActorPlan
from raysim.execution.worker import WorkerSpec
from raysim.federation.federation import from_settings, open_samples
from raysim.federation.task import from_task
from raysim.storage.trace import Stopwatch
from tests.faults.namespaces import network
from tests.faults.processes import Run, cluster
from tests.tasks import EQUAL, long_settings, make_task, model_of

ROUNDS = 60


@pytest.fixture
def inline(tmp_path):
    """Return the model bytes of the undisturbed inline run."""

    def run(**settings: Any) -> bytes:
        folder = tmp_path / "inline"
        raysim.run(long_settings(folder, **settings), make_task(EQUAL))
        return model_of(folder)

    return run


def nodes_of(run: Run) -> set[str]:
    return {actor["node"] for actor in run.actors()}


def go_on_until(run: Run, node: str, first: int) -> None:
    """Go on round by round, from one that it holds still after, until a node has an actor."""
    for number in range(first, ROUNDS - 1):
        run.go()
        run.until(f"{number + 1}.end")
        if node in nodes_of(run):
            run.release()
            return
        sleep(1)  # it is still starting
    pytest.fail(f"round {ROUNDS - 1} came before an actor on the new node")


@pytest.mark.full
@pytest.mark.parametrize("method", ["scaffold", "fedavg"])
def test_a_node_lost_in_mid_round_and_one_that_joins(tmp_path, inline, method):
    settings = {"method.name": method, "rounds": ROUNDS}
    moments = ["2.mid", *(f"{number}.end" for number in range(4, ROUNDS))]
    engine = {"engine.backend": "ray", "engine.actors": 2}
    with (
        cluster(2) as nodes,
        Run(tmp_path / "run", EQUAL, moments, address=nodes.address, **engine, **settings) as run,
    ):
        lost, kept = nodes.worker_nodes
        run.until("2.mid")
        assert nodes_of(run) == {lost.node_id, kept.node_id}
        nodes.remove_node(lost, allow_graceful=False)
        run.go()
        run.until("4.end")
        assert nodes_of(run) == {kept.node_id}  # it goes on alone
        joined = nodes.add_node(num_cpus=1)
        go_on_until(run, joined.node_id, 4)
        assert run.end() == (0, "")
    assert run.rounds == [*range(1, ROUNDS + 1)]
    assert model_of(tmp_path / "run") == inline(**settings)


@pytest.mark.full
def test_a_node_that_joins_is_used(tmp_path, inline):
    settings = {"method.name": "scaffold", "rounds": ROUNDS}
    moments = [f"{number}.end" for number in range(1, ROUNDS)]
    engine = {"engine.backend": "ray"}
    with (
        cluster(1) as nodes,
        Run(tmp_path / "run", EQUAL, moments, address=nodes.address, **engine, **settings) as run,
    ):
        run.until("1.end")
        joined = nodes.add_node(num_cpus=1)
        go_on_until(run, joined.node_id, 1)
        assert len(run.actors()) == 2
        assert run.end() == (0, "")
    assert model_of(tmp_path / "run") == inline(**settings)


def make_pool(tmp_path, watch=None, **plan: Any) -> ActorPool:
    settings = long_settings(tmp_path, **{"engine.backend": "ray"})
    spec = WorkerSpec(settings, from_task(make_task(EQUAL)), tmp_path, tmp_path)
    return ActorPool(spec, lambda: ActorPlan(**plan), watch or Stopwatch(False))


def test_where_no_node_has_room_the_run_stops_after_a_while(tmp_path, shared_ray, monkeypatch):
    monkeypatch.setattr(pool, "NO_ACTOR_SECONDS", 1.0)
    monkeypatch.setattr(pool, "WATCH_SECONDS", 0.2)
    actors = make_pool(tmp_path, actors=2, cpus=64.0, gpus=0.0)
    with pytest.raises(
        MachineError, match=r"^no actor is left, and for 1 seconds no node had room"
    ):
        actors.describe()
    actors.close()


@pytest.mark.full
def test_what_a_call_shares_is_put_once_and_lies_once_on_each_node(tmp_path):
    """Four actors on two nodes read a megabyte: the object store holds it once on each."""
    with cluster(2, num_cpus=0) as nodes:
        program = "from tests.faults.broadcast import main; main()"
        script = [sys.executable, "-c", program, str(tmp_path)]
        environment = {**os.environ, "RAY_ADDRESS": nodes.address}
        done = subprocess.run(script, env=environment, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        assert sorted(found["nodes"]) == sorted(node.node_id for node in nodes.list_all_nodes())
    assert found["puts"] == 1
    assert found["writable"] == [False] * 4  # views of the store, not copies


def test_a_silent_head_is_borne_for_a_while(shared_ray, monkeypatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with closing(ClusterHealth()) as watch:
            assert watch.check() and not watch.silent()
            monkeypatch.setattr(watch, "_head", f"127.0.0.1:{nobody.getsockname()[1]}")
            assert not watch.check() and watch.silent()
            monkeypatch.setattr(nodes_module, "HEAD_SECONDS", 0.0)
            with pytest.raises(MachineError, match=r"^the head of the Ray cluster, 127\.0\.0\.1:"):
                watch.check()
            assert watch.silent()


@pytest.mark.full
class Sleeper:
    """An actor that starts slowly."""

    def __init__(self) -> None:
        sleep(60)


def test_an_actor_that_starts_has_a_process_and_one_without_room_has_none(shared_ray):
    slow = ray.remote(Sleeper).options(num_cpus=0).remote()
    without_room = ray.remote(Sleeper).options(num_cpus=10_000).remote()
    try:
        with closing(ClusterHealth()) as watch:
            while not watch.has_process(slow):
                sleep(0.1)
            assert not watch.has_process(without_room)
    finally:
        ray.kill(slow)
        ray.kill(without_room)


IMPATIENT = """
from raysim.execution import cluster_health
from tests.faults.child import main

cluster_health.HEAD_SECONDS = 3.0
main()
"""


@pytest.mark.full
def test_a_head_that_is_lost_while_a_run_waits_for_nodes_is_named(tmp_path):
    how: dict[str, Any] = {"program": ("-c", IMPATIENT), "engine.backend": "ray"}
    with cluster(0) as nodes, Run(tmp_path / "run", EQUAL, address=nodes.address, **how) as run:
        while not any("waiting for one to join" in note for note in run.notes):
            assert run.process.poll() is None, run.errors()
            sleep(0.1)
        address = nodes.address
        nodes.head_node.kill_gcs_server(check_alive=False)
        code, line = run.end()
    assert code == 75
    assert f"the head of the Ray cluster, {address}, does not answer: " in line


def test_a_node_is_lost_that_the_head_does_not_count_as_alive(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as head, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        host, port = head.getsockname()
        alive = {"own": True, "other": True, "dead": False}
        place = {"NodeManagerAddress": host, "NodeManagerPort": port}
        context = SimpleNamespace(gcs_address=f"{host}:{port}", get_node_id=lambda: "own")
        fake = SimpleNamespace(
            get_runtime_context=lambda: context,
            nodes=lambda: [{"NodeID": n, "Alive": up, **place} for n, up in alive.items()],
        )
        monkeypatch.setattr(nodes_module, "ray", fake)
        with closing(ClusterHealth()) as watch:
            lost = {node for node in (*alive, "never seen", None) if watch.lost(node)}
            assert lost == {"dead", "never seen"}
            alive["own"] = False
            with pytest.raises(MachineError, match=r"^this machine is no node of the Ray cluster"):
                watch.lost("other")
            monkeypatch.setattr(watch, "_head", f"127.0.0.1:{nobody.getsockname()[1]}")
            assert not watch.lost("dead")  # nobody knows while the head is silent


def test_a_line_tells_an_idle_connection_from_one_whose_other_side_has_ended():
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        line = nodes_module._IdleConnection(*raylet.getsockname())
        accepted, _ = raylet.accept()
        assert line.alive()
        accepted.close()
        sleep(0.1)
        assert line.alive()  # it is had again
        raylet.accept()[0].close()
    sleep(0.1)
    assert not line.alive()
    line.close()


def test_a_node_without_the_data_prepares_it_in_its_own_root(tmp_path):
    settings = long_settings(
        tmp_path / "out",
        **{"dataset.name": "tests.blobs:Blobs", "model.name": "tests.blobs:Linear"},
    )
    roots = [tmp_path / "driver", tmp_path / "node"]
    federation = from_settings(settings, lambda: roots[0], lambda *_: None)
    assert federation.on_this_node() is federation  # the node sees the driver's files
    expected = open_samples(federation.train)
    away = federation.train.parent.rename(tmp_path / "away")
    del roots[0]
    own = federation.on_this_node()
    assert own.train.parent == roots[0] and own.test.parent == roots[0]
    assert (open_samples(own.train).x == expected.x).all() and away.exists()


def test_a_node_that_cannot_have_the_data_is_named(tmp_path):
    def refuse() -> Any:
        raise DataError("mnist: not to be fetched")

    federation = replace(from_task(make_task(EQUAL)), train=tmp_path / "none", prepare=refuse)
    with pytest.raises(DataError, match=rf"^node {socket.gethostname()}: mnist: not to be fetched"):
        federation.on_this_node()


@pytest.mark.full
@pytest.mark.parametrize("method", ["scaffold", "fedavg"])
def test_a_node_that_is_cut_off_in_mid_round(tmp_path, inline, method):
    """Its actor lives on and may still write to the run's folder; nobody listens to it."""
    settings = {"method.name": method, "rounds": 6}
    engine = {"engine.backend": "ray", "engine.actors": 2}
    try:
        with network() as net, cluster(0, node_ip_address=net.head) as nodes:
            addresses = [net.add_node(number, nodes.address) for number in (1, 2)]
            wait_for_nodes(nodes, 3)
            folder = tmp_path / "run"
            moments = ["2.mid", "4.end"]
            with Run(folder, EQUAL, moments, address=nodes.address, **engine, **settings) as run:
                run.until("2.mid")
                before = nodes_of(run)
                assert len(before) == len(addresses)
                net.cut(2)
                run.go()
                run.until("4.end")
                assert len(nodes_of(run)) == 1 and nodes_of(run) < before
                run.go()
                assert run.end() == (0, "")
    except PermissionError as error:
        pytest.skip(str(error))
    assert model_of(folder) == inline(**settings)


def wait_for_nodes(nodes: Any, count: int) -> None:
    for _ in range(240):
        if len(nodes.global_state._live_node_ids()) == count:
            return
        sleep(0.5)
    pytest.fail(f"the cluster did not come to {count} nodes")
