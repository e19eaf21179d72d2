"""Runs on a cluster that grows: Ray's autoscaler starts nodes on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

import raysim
from tests.cluster.head import Head, started
from tests.faults.processes import Run
from tests.tasks import EQUAL, make_settings, make_task, model_of

ROUNDS = 60
STATUS = """
import sys, ray
from ray.autoscaler.v2.sdk import get_cluster_status
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
demands = get_cluster_status(ray.get_runtime_context().gcs_address).resource_demands
alive = [node for node in ray.nodes() if node["Alive"]]
print(sum(len(each) for each in vars(demands).values()), len(alive))
"""
"""Prints what Ray knows of pending placement groups, tasks, actors and constraints; its nodes."""


def status(head: Head) -> list[int]:
    """Return the numbers of demands and of nodes."""
    command = [sys.executable, "-c", STATUS, head.gcs]
    done = subprocess.run(command, env=head.environment, capture_output=True, text=True, check=True)
    return [int(number) for number in done.stdout.splitlines()[-1].split()]


def wait_for_the_head_alone(head: Head) -> None:
    """Wait until nothing is asked for, and the nodes that were started have been stopped."""
    end = monotonic() + 180
    while (found := status(head)) != [0, 1]:
        assert monotonic() < end, f"demands and nodes are left: {found}"
        sleep(1)


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def growing(tmp_path_factory: Any, request: pytest.FixtureRequest) -> Iterator[Head]:
    """A head of one core, beside which two nodes of four cores and a GPU are started at most."""
    workers = {"resources": {"CPU": 4, "GPU": 1}, "min_workers": 0, "max_workers": 2}
    folder = tmp_path_factory.mktemp("head")
    with started(folder, cores=1, gpus=0, workers=workers, version=request.param) as head:
        yield head


@pytest.fixture
def start(tmp_path, growing, monkeypatch) -> Iterator[Any]:
    """Return what starts a run on the cluster, which then is its head alone again."""
    for name, value in growing.environment.items():
        monkeypatch.setenv(name, value)

    def begin(moments: list[str], **settings: Any) -> Run:
        engine = {"engine.backend": "ray"}
        return Run(tmp_path / "run", EQUAL, moments, address=growing.gcs, **engine, **settings)

    yield begin
    wait_for_the_head_alone(growing)


@pytest.mark.full
def test_a_head_without_gpus_waits_for_the_first_node_with_one(start):
    with start([], rounds=2, **{"engine.gpus_per_actor": 1.0}) as run:
        assert run.end() == (0, "")
        assert run.notes[0] == (
            "engine.actors=auto: waiting for a node with room for an actor, 1 CPU, 1 GPU"
        )
        (actor,) = run.actors()
        assert actor["gpus"] == ["0"]


@pytest.mark.full
def test_what_no_node_type_holds_is_refused_in_one_line(start):
    with start([], rounds=2, **{"engine.actors": 2, "engine.cpus_per_actor": 64.0}) as run:
        code, line = run.end()
    assert code == 2
    assert line.startswith("raysim: engine.actors=2: no node with 64 CPU can be started: ")


@pytest.mark.full
def test_what_is_beyond_the_most_nodes_is_waited_for(start):
    """Four actors want a GPU each; two nodes have one."""
    with start(["1.end"], rounds=2, **{"engine.actors": 4, "engine.gpus_per_actor": 1.0}) as run:
        run.until("1.end")
        room = " have room; Ray is asked to start nodes for the others"
        assert any(note.endswith(room) for note in run.notes)
        run.release()
        assert run.end() == (0, "")


@pytest.mark.full
def test_eight_actors_grow_the_cluster_and_leave_no_demand(tmp_path, start):
    settings = {"rounds": ROUNDS, "method.name": "scaffold"}
    moments = [f"{number}.end" for number in range(1, ROUNDS)]
    with start(moments, **settings, **{"engine.actors": 8}) as run:
        for number in range(1, ROUNDS):
            run.until(f"{number}.end")
            if len(run.actors()) == 8:
                break
            run.go()
            sleep(1)  # nodes and actors are still starting
        assert run.notes[-1].endswith(": 1 have room; Ray is asked to start nodes for the others")
        assert len(run.actors()) == 8
        assert len({actor["node"] for actor in run.actors()}) == 3
        run.release()
        assert run.end() == (0, "")
    inline = tmp_path / "inline"
    raysim.run(make_settings(inline, **settings), make_task(EQUAL))
    assert model_of(tmp_path / "run") == model_of(inline)


@pytest.mark.full
def test_a_run_that_has_asked_for_nodes_names_the_loss_of_the_head(tmp_path, monkeypatch):
    """To give back what it asked for, it would wait for the head, and Ray would end it with 1."""
    workers = {"resources": {"CPU": 4}, "min_workers": 0, "max_workers": 1}
    with started(tmp_path, cores=1, gpus=0, workers=workers, version=2) as head:
        for name, value in head.environment.items():
            monkeypatch.setenv(name, value)
        asked = {"engine.backend": "ray", "engine.actors": 2}
        with Run(
            tmp_path / "run", EQUAL, ["2.mid"], address=head.gcs, rounds=ROUNDS, **asked
        ) as run:
            run.until("2.mid")
            gcs = (p for p in psutil.process_iter(["cmdline"]) if "gcs_server" in p.name())
            (own,) = (p for p in gcs if any(str(head.folder) in word for word in p.cmdline()))
            own.kill()
            run.release()
            code, line = run.end()
    assert code == 75, line
    assert "does not answer" in line or "Ray has ended on this machine" in line


@pytest.mark.full
def test_a_killed_run_leaves_no_demand(start, growing):
    """Twelve actors need more than the cluster may grow to."""
    with start(["1.end"], rounds=ROUNDS, **{"engine.actors": 12}) as run:
        run.until("1.end")
        assert status(growing)[0]
        run.kill()
