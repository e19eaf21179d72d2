"""Asynchronous rounds on a simulated fleet: the same bytes on three actors, whoever is killed."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pyarrow.parquet as pq
import pytest

import raysim
from tests.driver.asynchronous.test_rounds import BUFFERED, SIZES, TIERED, rows_of
from tests.faults.processes import Run
from tests.tasks import long_settings, make_task, model_of

METHODS = {"buffer": BUFFERED, "tiers": TIERED}
FLEET = {"clock.name": "devices", "clock.dropout": 0.2}
TIMES = ("virtual_seconds", "virtual_joules", "lost_clients")


def same(folder: Any, result: raysim.Result) -> None:
    """Check that a run ended with the bytes and the virtual times of another."""
    assert model_of(folder) == model_of(result.run_dir)
    assert rows_of(folder) == rows_of(result.run_dir)
    found = pq.read_table(folder / "metrics.parquet")
    for name in TIMES:
        assert found[name].to_pylist() == result.metrics[name].to_pylist()


@pytest.mark.parametrize("actors", [1, 2, pytest.param(3, marks=pytest.mark.full)])
def test_tiers_on_actors(tmp_path, resident_actors, actors):
    options, task = {**TIERED, **FLEET, "clock.spread": 0.3}, make_task(SIZES)
    whole = raysim.run(long_settings(tmp_path / "inline", **options), task)
    assert {*whole.metrics["tier"].to_pylist()} == {1, 2}  # the model is not the first one any more
    engine = {"engine.backend": "ray", "engine.actors": actors}
    raysim.run(long_settings(tmp_path / "run", **options, **engine), task)
    assert len(json.loads((tmp_path / "run/environment.json").read_text())["actors"]) == actors
    same(tmp_path / "run", whole)


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("killed", ["driver", "actor"])
def test_killed_in_mid_queue_on_three_actors(tmp_path, killed, method):
    options = {**METHODS[method], **FLEET}
    whole = raysim.run(long_settings(tmp_path / "inline", **options), make_task(SIZES))
    engine = {"engine.backend": "ray", "engine.actors": 3, "engine.cpus_per_actor": 0.5}
    options = {**options, **engine, "checkpoint_every": 3}
    with Run(tmp_path / "run", SIZES, ["5.mid", "6.end"], **options) as run:
        run.until("5.mid")
        assert len(run.actors()) == 3
        if killed == "actor":
            os.kill(run.actors()[0]["pid"], signal.SIGKILL)
            run.go()
            run.until("6.end")
            run.release()
            assert run.end() == (0, "")
            assert any(event.startswith("renewed") for event in run.events)
        else:
            run.kill()
    if killed == "driver":
        with Run(tmp_path / "run", SIZES, **options) as run:
            assert run.end() == (0, "")
        assert run.rounds == [*range(4, 9)]  # from the checkpoint of round 3 on
    same(tmp_path / "run", whole)
