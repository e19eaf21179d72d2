"""Object stores with less room than a round needs: Ray spills to disk, and the bytes are right."""

from __future__ import annotations

from functools import partial

import pytest
from ray._private.internal_api import memory_summary

import raysim
from raysim.testing.tasks import SmallNet
from tests.faults.processes import Run, cluster
from tests.tasks import EQUAL, long_settings, make_task, model_of

SMALLEST = 75 * 2**20
"""The smallest store that Ray makes, in bytes."""
WIDTH = 600_000
"""Of a model of 38 MB: SCAFFOLD sends it twice, and gets back the exact sums of both."""


@pytest.mark.full
def test_a_round_that_no_object_store_holds(tmp_path):
    settings = {"method.name": "scaffold", "rounds": 2, "local.epochs": 1}
    engine = {"engine.backend": "ray"}
    with cluster(2, store=SMALLEST) as nodes:
        address = nodes.address
        with Run(
            tmp_path / "run", EQUAL, address=address, width=WIDTH, **settings, **engine
        ) as run:
            assert run.end() == (0, "")
        assert "Spilled" in memory_summary(address, stats_only=True)
    task = make_task(EQUAL, partial(SmallNet, width=WIDTH))
    raysim.run(long_settings(tmp_path / "inline", **settings), task)
    assert model_of(tmp_path / "run") == model_of(tmp_path / "inline")
