"""Runs on a cluster that grows: Ray's autoscaler starts nodes on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import pytest

import raysim
from tests.cluster.head import Head, started
from tests.faults.processes import Run
from tests.tasks import EQUAL, make_settings, make_task, model_of

ROUNDS = 60
DEMANDS = """
import sys, ray
from ray.autoscaler.v2.sdk import get_cluster_status
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
demands = get_cluster_status(ray.get_runtime_context().gcs_address).resource_demands
print(sum(len(each) for each in vars(demands).values()))
"""
"""Prints what Ray knows of pending placement groups, tasks, actors and constraints."""


def demands(head: Head) -> int:
    command = [sys.executable, "-c", DEMANDS, head.gcs]
    done = subprocess.run(command, env=head.environment, capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


def wait_for_no_demand(head: Head) -> None:
    end = monotonic() + 60
    while demands(head):
        assert monotonic() < end, "the run is over and its demand is not"
        sleep(1)


@pytest.fixture(scope="module")
def growing(tmp_path_factory: Any) -> Iterator[Head]:
    """A head of one core, beside which two nodes of four cores and a GPU are started at most."""
    workers = {"resources": {"CPU": 4, "GPU": 1}, "min_workers": 0, "max_workers": 2}
    with started(tmp_path_factory.mktemp("head"), cores=1, gpus=0, workers=workers) as head:
        yield head


@pytest.fixture
def start(tmp_path, growing, monkeypatch) -> Any:
    """Return what starts a run on the cluster."""
    for name, value in growing.environment.items():
        monkeypatch.setenv(name, value)

    def begin(moments: list[str], **settings: Any) -> Run:
        engine = {"engine.backend": "ray"}
        return Run(tmp_path / "run", EQUAL, moments, address=growing.gcs, **engine, **settings)

    return begin


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
        assert run.end() == (2, "raysim: engine.actors=2: no node type of the cluster has 64 CPU")


@pytest.mark.full
def test_eight_actors_grow_the_cluster_and_leave_no_demand(tmp_path, start, growing):
    settings = {"rounds": ROUNDS, "method.name": "scaffold"}
    moments = [f"{number}.end" for number in range(1, ROUNDS)]
    with start(moments, **settings, **{"engine.actors": 8}) as run:
        for number in range(1, ROUNDS):
            run.until(f"{number}.end")
            if len(run.actors()) == 8:
                break
            run.go()
            sleep(1)  # nodes and actors are still starting
        assert run.notes[-1].endswith(" have room; Ray is asked to start nodes for the others")
        assert len(run.actors()) == 8
        assert len({actor["node"] for actor in run.actors()}) == 3
        run.release()
        assert run.end() == (0, "")
    wait_for_no_demand(growing)
    inline = tmp_path / "inline"
    raysim.run(make_settings(inline, **settings), make_task(EQUAL))
    assert model_of(tmp_path / "run") == model_of(inline)


@pytest.mark.full
def test_a_killed_run_leaves_no_demand(start, growing):
    """Twelve actors need more than the cluster may grow to."""
    with start(["1.end"], rounds=ROUNDS, **{"engine.actors": 12}) as run:
        run.until("1.end")
        assert demands(growing)
        run.kill()
    wait_for_no_demand(growing)
