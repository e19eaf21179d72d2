"""Runs that choose among nodes by the type of their GPUs and by labels, where Ray has both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import raysim
from tests.faults.processes import Run, cluster
from tests.tasks import EQUAL, long_settings, make_task, model_of

NODES = [("A100", "a"), ("A100", "b"), ("T4", "b")]
"""Type of the GPU and zone of each node."""
HALF = {"engine.backend": "ray", "engine.gpus_per_actor": 0.5, "rounds": 2}


@pytest.fixture(scope="module")
def mixed() -> Iterator[tuple[str, list[str]]]:
    """Return the address of a head without anything, and ids of nodes of two cores and a GPU."""
    with cluster(0) as found:
        nodes = [
            found.add_node(
                num_cpus=2,
                num_gpus=1,
                resources={f"accelerator_type:{kind}": 1},
                labels={"zone": zone},
                object_store_memory=150 * 2**20,
            )
            for kind, zone in NODES
        ]
        yield found.address, [node.node_id for node in nodes]


@pytest.mark.full
@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"accelerator_type": "T4"}, [2]),
        ({"accelerator_type": "A100"}, [0, 1]),
        ({"node_labels": '{"zone":"b"}'}, [1, 2]),
        ({"accelerator_type": "A100", "node_labels": '{"zone":"b"}'}, [1]),
    ],
    ids=str,
)
def test_actors_run_on_the_chosen_nodes_alone(tmp_path, mixed, chosen, expected):
    settings = HALF | {f"engine.{name}": value for name, value in chosen.items()}
    address, nodes = mixed
    with Run(tmp_path / "run", EQUAL, address=address, **settings) as run:
        assert run.end() == (0, "")
        used = Counter(nodes.index(actor["node"]) for actor in run.actors())
    assert used == dict.fromkeys(expected, 2)
    raysim.run(long_settings(tmp_path / "inline", rounds=2), make_task(EQUAL))
    assert model_of(tmp_path / "run") == model_of(tmp_path / "inline")


@pytest.mark.full
@pytest.mark.parametrize(
    ("chosen", "line"),
    [
        (
            {"engine.accelerator_type": "H100"},
            "engine.accelerator_type=H100: no node has it; there is A100, T4",
        ),
        (
            {"engine.accelerator_type": "T4", "engine.node_labels": '{"zone":"a"}'},
            'engine.node_labels={"zone": "a"}: no node has these labels',
        ),
        (
            {"engine.accelerator_type": "T4", "engine.actors": 3},
            "engine.actors=3: at most 2 with engine.gpus_per_actor=0.5",
        ),
    ],
)
def test_what_no_node_has_is_refused_in_one_line(tmp_path, mixed, chosen: Any, line):
    with Run(tmp_path / "run", EQUAL, address=mixed[0], **HALF, **chosen) as run:
        assert run.end() == (2, f"raysim: {line}")
