"""A profile accounts for every second of every worker, and its trace is what Perfetto reads."""

from __future__ import annotations

import json

import pytest

import raysim
from raysim.engine.profile import DRIVER, Profile, Stopwatch
from tests.conftest import make_settings, make_task

ACTORS = {"engine.backend": "ray", "engine.actors": 2}
WORKER = ["broadcast", "data", "training", "reduction", "waiting"]


def trace_of(path):
    return json.loads(path.read_text().rstrip().removesuffix(",") + "]")


@pytest.mark.parametrize("engine", [{}, ACTORS], ids=["inline", "ray"])
def test_a_run_says_where_its_time_went(tmp_path, shared_ray, engine):
    settings = make_settings(tmp_path / "run", profile=True, rounds=2, fraction=1.0, **engine)
    rows = raysim.run(settings, make_task((20,) * 8)).metrics.to_pylist()
    for row in rows:
        spent = {name: row[f"worker_{name}_seconds"] for name in WORKER}
        assert all(seconds >= 0 for seconds in spent.values())
        workers = round(sum(spent.values()) / row["seconds"], 6)
        assert workers in {1.0, 2.0}
        assert spent["training"] > spent["reduction"] > 0 and spent["data"] > 0
        assert row["driver_placement_seconds"] >= 0 < row["driver_reduction_seconds"]
    events = trace_of(tmp_path / "run/trace_000001.json")
    names = {e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M"}
    assert len(names) == len(set(names.values())) >= 2
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in spans if event["tid"] == names[DRIVER]} >= {
        "reduction",
        "evaluation",
    }
    trained = [e for e in spans if e["name"] == "training" and e["args"]["round"] == 2]
    assert len(trained) == 8
    total = sum(event["dur"] for event in trained) / 1e6
    assert total == pytest.approx(rows[1]["worker_training_seconds"])


def test_without_it_nothing_is_noted(tmp_path):
    result = raysim.run(make_settings(tmp_path / "run", rounds=1), make_task((20,) * 4))
    assert not [name for name in result.metrics.column_names if name.startswith("worker_")]
    assert not list((tmp_path / "run").glob("trace*"))


def test_figures_of_a_round_by_hand(tmp_path):
    profile = Profile(tmp_path, 1)
    spans = {
        "a": [("broadcast", 0.0, 1.0), ("training", 1.0, 4.0), ("training", 5.0, 2.0)],
        "b": [("data", 0.0, 0.5), ("training", 1.0, 3.0), ("reduction", 4.0, 0.25)],
        DRIVER: [("placement", 0.0, 0.125), ("evaluation", 9.0, 5.0)],
    }
    row = profile.round(1, 8.0, spans)
    assert row == {
        "worker_broadcast_seconds": 1.0,
        "worker_data_seconds": 0.5,
        "worker_training_seconds": 9.0,
        "worker_reduction_seconds": 0.25,
        "worker_waiting_seconds": 2 * 8.0 - 10.75,
        "driver_broadcast_seconds": 0.0,
        "driver_placement_seconds": 0.125,
        "driver_reduction_seconds": 0.0,
    }


def test_a_stopwatch_notes_a_failing_phase_and_hands_over_once():
    watch = Stopwatch(on=True)
    with pytest.raises(ValueError, match="no"), watch("data"):
        raise ValueError("no")
    ((phase, _, seconds),) = watch.take()
    assert phase == "data" and seconds >= 0 and watch.take() == []
