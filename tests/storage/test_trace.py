"""A trace accounts for every second of every worker, and its trace is what Perfetto reads."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

import raysim
from raysim.storage.trace import DRIVER, Stopwatch, TraceWriter
from tests.tasks import make_settings, make_task

ACTORS = {"engine.backend": "ray", "engine.actors": 2}
WORKER = ["broadcast", "data", "training", "reduction", "waiting"]
CLOCK = 100.0
"""Microseconds by which a span's end may be off: its start is read from another clock."""


def trace_of(path):
    return json.loads(path.read_text().rstrip().removesuffix(",") + "]")


def spans_of(path):
    """Return the spans of a trace, each with its worker and its end."""
    events = trace_of(path)
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    assert {span["tid"] for span in spans} == set(names) and len(set(names.values())) == len(names)
    return [
        {"worker": names[e["tid"]], "round": e["args"]["round"], "end": e["ts"] + e["dur"], **e}
        for e in spans
    ]


def seconds_of(spans, phase, *, driver=False):
    chosen = (s for s in spans if (s["worker"] == DRIVER) == driver and s["name"] == phase)
    return sum(span["dur"] for span in chosen) / 1e6


@pytest.mark.parametrize("fraction", [1.0, 0.125], ids=["all", "one-client"])
def test_a_run_says_where_its_time_went(tmp_path, fraction):
    check_a_run(tmp_path, fraction, 1)


@pytest.mark.parametrize("fraction", [1.0, 0.25], ids=["all", "two-clients"])
def test_a_run_on_actors_says_where_its_time_went(tmp_path, resident_actors, fraction):
    check_a_run(tmp_path, fraction, 2, **ACTORS)


def check_a_run(tmp_path, fraction, workers, **engine):
    settings = make_settings(tmp_path / "run", trace=True, rounds=3, fraction=fraction, **engine)
    rows = raysim.run(settings, make_task((20,) * 8)).metrics.to_pylist()
    spans = spans_of(tmp_path / "run/trace_000001.json")
    evaluated = 0.0  # when the evaluation before ended
    for row in rows:
        spent = {name: row[f"worker_{name}_seconds"] for name in WORKER}
        assert all(seconds >= 0 for seconds in spent.values())
        assert sum(spent.values()) == pytest.approx(workers * row["seconds"])
        assert all(spent[name] > 0 for name in ("training", "reduction", "data"))
        noted = [span for span in spans if span["round"] == row["round"]]
        assert min(span["ts"] for span in noted) >= evaluated - CLOCK
        (evaluation,) = (s for s in noted if (s["worker"], s["name"]) == (DRIVER, "evaluation"))
        begun, evaluated = evaluation["ts"], evaluation["end"]
        own = [span for span in noted if span["ts"] < begun]
        for phase in WORKER[:-1]:
            assert seconds_of(own, phase) == pytest.approx(spent[phase])
        for phase in ["broadcast", "placement", "reduction"]:
            told = row[f"driver_{phase}_seconds"]
            assert seconds_of(own, phase, driver=True) == pytest.approx(told)
        assert seconds_of(noted, "evaluation") > 0 == seconds_of(own, "evaluation")
        assert sum(s["name"] == "training" for s in own) == round(8 * fraction)
        # A worker adds each client's upload, and finishes the sum that it hands over.
        reduced = sum(s["name"] == "reduction" and s["worker"] != DRIVER for s in own)
        assert reduced > round(8 * fraction)


def test_without_it_nothing_is_noted(tmp_path):
    result = raysim.run(make_settings(tmp_path / "run", rounds=1), make_task((20,) * 4))
    assert not [name for name in result.metrics.column_names if name.startswith("worker_")]
    assert not list((tmp_path / "run").glob("trace*"))


def test_figures_of_a_round_by_hand(tmp_path):
    writer = TraceWriter(tmp_path, 1)
    spans = {
        "a": [("broadcast", 0.0, 1.0), ("training", 1.0, 4.0), ("training", 5.0, 2.0)],
        "b": [("data", 0.0, 0.5), ("training", 1.0, 3.0), ("reduction", 4.0, 0.25)],
        DRIVER: [("placement", 0.0, 0.125)],
    }
    evaluation = {
        "b": [("broadcast", 9.0, 0.5), ("evaluation", 9.5, 4.0)],
        "c": [("evaluation", 9.0, 4.5)],
        DRIVER: [("broadcast", 9.0, 0.5), ("placement", 9.5, 0.5), ("evaluation", 9.0, 5.0)],
    }
    row = writer.round(1, 8.0, 3, spans, evaluation)
    assert row == {
        "worker_broadcast_seconds": 1.0,
        "worker_data_seconds": 0.5,
        "worker_training_seconds": 9.0,
        "worker_reduction_seconds": 0.25,
        "worker_waiting_seconds": 3 * 8.0 - 10.75,
        "driver_broadcast_seconds": 0.0,
        "driver_placement_seconds": 0.125,
        "driver_reduction_seconds": 0.0,
    }
    lines = [
        event["tid"] for event in trace_of(next(tmp_path.glob("trace*"))) if event["ph"] == "X"
    ]
    assert [lines.count(line) for line in sorted(set(lines))] == [3, 5, 4, 1]


def test_the_file_of_a_run_that_was_killed_is_replaced(tmp_path):
    (tmp_path / "trace_000003.json").write_text("[\nhalf")
    spans = {"a": [("training", 0.0, 4.0)]}
    writer = TraceWriter(tmp_path, 3)
    for number in (3, 4):
        writer.round(number, 4.0, 1, spans, {})
    assert [s["round"] for s in spans_of(tmp_path / "trace_000003.json")] == [3, 4]


def test_a_lost_actor_and_its_successor_both_count(tmp_path):
    spans = {worker: [("training", 0.0, 4.0)] for worker in ("lost", "successor")}
    row = TraceWriter(tmp_path, 1).round(1, 4.0, 1, spans, {})
    assert row["worker_waiting_seconds"] == 0.0


def test_who_trained_before_the_round_that_takes_its_result_in_did_not_wait_less_than_never(
    tmp_path,
):
    row = TraceWriter(tmp_path, 1).round(2, 4.0, 1, {"a": [("training", -5.0, 9.0)]}, {})
    assert row["worker_training_seconds"] == 9.0 and row["worker_waiting_seconds"] == 0.0


def test_a_stopwatch_notes_a_failing_phase_and_hands_over_once():
    watch = Stopwatch(on=True)
    with pytest.raises(ValueError, match="no"), watch("data"):
        raise ValueError("no")
    ((phase, _, seconds),) = watch.take()
    assert phase == "data" and seconds >= 0 and watch.take() == []


def test_the_work_of_clients_in_virtual_time(tmp_path):
    """A line per client, a span per row of `clients.parquet`."""
    settings = make_settings(
        tmp_path, trace=True, rounds=3, **{"clock.name": "devices", "method.name": "fsvrg"}
    )
    raysim.run(settings, make_task((20, 30, 10)))
    spans = spans_of(tmp_path / "virtual_trace_000001.json")
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    assert len(rows) == 3 * (3 + 2)
    assert {(s["worker"], s["round"], s["ts"], s["dur"]) for s in spans} == {
        (
            f"client {row['client']}",
            row["round"],
            row["virtual_start"] * 1e6,
            row["virtual_seconds"] * 1e6,
        )
        for row in rows
    }


def test_the_work_of_clients_of_asynchronous_rounds_is_named_after_the_version_they_start_from(
    tmp_path,
):
    own = {"clock.name": "devices", "method.name": "fedbuff", "method.buffer": 2}
    settings = make_settings(tmp_path, trace=True, rounds=6, **own)
    raysim.run(settings, make_task((20, 30, 10, 40)))
    spans = spans_of(tmp_path / "virtual_trace_000001.json")
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    named = [(s["worker"], s["ts"], s["name"]) for s in spans]
    assert len({name for _, _, name in named}) > 2
    assert sorted(named) == sorted(
        (f"client {r['client']}", r["virtual_start"] * 1e6, f"from version {r['version']:.0f}")
        for r in rows
    )
