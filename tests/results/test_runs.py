"""Run directories are read whatever the state of their run."""

from __future__ import annotations

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raysim
from raysim.errors import RunError, SettingsError
from raysim.results.runs import read_run, read_runs, result_settings
from tests.results.conftest import make_rows
from tests.tasks import StopAfter, make_settings, make_task


def test_a_finished_run(tmp_path):
    result = raysim.run(make_settings(tmp_path / "run", rounds=3), make_task((8, 8)))
    record = read_run(tmp_path / "run")
    assert record.state == "finished"
    assert (record.rounds, record.seed, record.own_task) == (3, 0, True)
    assert record.summary == result.summary
    assert record.settings["local.batch_size"] == 8 and record.settings["method.name"] == "fedavg"
    assert "schema" not in record.settings
    model = (tmp_path / "run/model.safetensors").read_bytes()
    assert record.digest == hashlib.sha256(model).hexdigest()
    assert record.environment["packages"]["torch"]
    names = result.metrics.column_names
    assert record.metrics.select(names).equals(result.metrics)
    assert record.metrics["total_seconds"][-1].as_py() == pytest.approx(result.summary["seconds"])


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ({"method.name": "fedbuff"}, "a version of the model, made of the updates that have"),
        ({"method.methods": {"fedprox": {}, "fedbuff": {}}}, "a version of the model, made of the"),
        ({"method.methods": {"fedprox": {}}}, ""),
    ],
)
def test_the_round_of_a_method_in_words(tmp_path, method, words):
    settings = make_settings(tmp_path / "run", rounds=1, **{"method.name": "chain", **method})
    raysim.run(settings, make_task((8, 8, 8)))
    found = read_run(tmp_path / "run").own_round
    assert found == settings.method.own_round and found[: len(words) or None] == words


def test_an_interrupted_run_and_its_damaged_table(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        raysim.run(
            make_settings(path, rounds=4, checkpoint_every=1), make_task((8, 8)), StopAfter(2)
        )
    record = read_run(path)
    assert (record.state, record.rounds, record.summary) == ("interrupted", 2, None)
    (path / "metrics.parquet").write_bytes(b"PAR1 but no table")
    damaged = read_run(path)
    assert damaged.metrics.equals(record.metrics)
    assert len(damaged.notes) == 1 and "\n" not in damaged.notes[0]
    assert damaged.notes[0].startswith(f"{path}/metrics.parquet: is damaged (")
    assert damaged.notes[0].endswith(f"taking {path}/checkpoints/round_000002/metrics.parquet")
    (path / "config.json").write_text("{")
    assert read_run(path).settings == record.settings
    copies = sorted(path.glob("checkpoints/*/metrics.parquet"))
    copies[1].write_bytes(b"x")
    assert read_run(path).rounds == 1  # the checkpoint before
    copies[0].write_bytes(b"x")
    assert read_run(path).rounds == 0
    assert read_run(path).notes[0].endswith("no checkpoint has its rows")


DAMAGES = {
    "texts": (
        lambda table: table.set_column(1, "train_loss", pa.array(["low"] * len(table))),
        "column 'train_loss' holds string, not numbers",
    ),
    "too many rows": (
        lambda table: pa.concat_tables([table] * 100),
        "200 rows of at most 2 rounds",
    ),
    "a name twice": (
        lambda table: table.append_column("train_loss", table["train_loss"]),
        "two columns are named 'train_loss'",
    ),
    "numbers of rounds in words": (
        lambda table: table.set_column(0, "round", pa.array(["one"] * len(table))),
        "no column has the numbers of the rounds",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_table_of_other_rows_or_columns_is_damaged(tmp_path, damage):
    path, (damaged, problem) = tmp_path / "run", DAMAGES[damage]
    result = raysim.run(make_settings(path, rounds=2), make_task((8, 8)))
    record = read_run(path)
    pq.write_table(damaged(result.metrics), path / "metrics.parquet")
    found = read_run(path)
    sealed = path / "checkpoints/round_000002/metrics.parquet"
    assert found.metrics.equals(record.metrics)
    assert f"{path}/metrics.parquet: is damaged ({problem}); taking {sealed}" in found.notes
    again = raysim.run(make_settings(path, rounds=2), make_task((8, 8)))
    assert again.metrics.equals(result.metrics)
    assert read_run(path).state == "finished"


def test_a_run_that_diverged(tmp_path):
    settings = make_settings(tmp_path / "run", rounds=4, **{"local.lr": 1e9})
    with pytest.raises(raysim.RunError):
        raysim.run(settings, make_task((8, 8)))
    assert read_run(tmp_path / "run").state == "diverged"


@pytest.mark.parametrize(
    ("log", "state"),
    [
        ("round 4, client 1\nRunError: its update is not finite\n", "diverged"),
        ("round 4, client 1\nRunError: its update is out of range (x)\n", "diverged"),
        ("round 4, client 1\nRunError: its update is not finite\nround 4, client 2\nE\n", "failed"),
        ("round 4, client 1\nZeroDivisionError\n", "failed"),
        ("round 3, client 1\nRunError: its update is not finite\n", "interrupted"),
        ("", "interrupted"),
    ],
)
def test_the_state_is_that_of_the_last_failure_after_the_last_round(write_run, log, state):
    path = write_run(rows=make_rows([0.1, 0.2, 0.3]), finished=False)
    (path / "errors.log").write_text(log)
    record = read_run(path)
    assert record.state == state
    line = f"in round 4; its traceback is in {path}/errors.log"
    assert [note.endswith(line) for note in record.notes] == [True] * (state != "interrupted")


@pytest.mark.parametrize(
    ("text", "state", "said"),
    [
        ('{"error": "lost its slot 3 times", "formula": {}}', "failed", "lost its slot 3 times"),
        (
            '{"error": "client 1: its update is not finite", "formula": {}}',
            "diverged",
            "client 1: its update",
        ),
        ('{"formula": {}}', "failed", "its record is damaged"),
        ("{", "failed", "its record is damaged"),
    ],
)
def test_the_failure_that_a_table_recorded_is_the_end_of_an_unfinished_run(
    write_run, text, state, said
):
    """It says more than the log, in which a client may stand that was dropped."""
    rows = make_rows([0.1, 0.2])
    path, finished = (write_run(name, rows, finished=name == "b") for name in "ab")
    for run in (path, finished):
        (run / "failed.json").write_text(text)
        (run / "errors.log").write_text("round 3, client 7\nZeroDivisionError\n")
    record = read_run(path)
    (note,) = record.notes
    assert record.state == state and note.startswith(f"{path}: {state}: {said}")
    assert (read_run(finished).state, read_run(finished).notes) == ("finished", ())


def test_a_run_that_goes_on_has_not_failed(tmp_path):
    """By `raysim resume`, which knows no table that would clear the record."""
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(path, rounds=4), make_task((8, 8)), StopAfter(2))
    (path / "failed.json").write_text('{"error": "lost its slot 3 times", "formula": {}}')
    assert read_run(path).state == "failed"
    with pytest.raises(KeyboardInterrupt):
        raysim.resume(path, make_task((8, 8)), StopAfter(3))
    assert (read_run(path).state, read_run(path).notes) == ("interrupted", ())


def test_a_run_is_running_as_long_as_a_process_writes_to_it(tmp_path):
    """Also where it goes on after a failure; who reads the state writes nothing."""
    seen, path = [], tmp_path / "run"

    class Reading(StopAfter):
        def round_done(self, row):
            seen.append(read_run(path).state)
            super().round_done(row)

    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(path, rounds=4), make_task((8, 8)), Reading(1))
    (path / "errors.log").write_text("round 2, client 7\nZeroDivisionError\n")
    assert read_run(path).state == "failed"
    with pytest.raises(KeyboardInterrupt):
        raysim.resume(path, make_task((8, 8)), Reading(2))
    assert seen == ["running"] * 2 and read_run(path).state == "interrupted"
    (path / ".lock").unlink()
    before = sorted(path.iterdir())
    assert read_run(path).state == "interrupted" and sorted(path.iterdir()) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_a_divergence(write_run, value):
    path = write_run(rows=make_rows([0.1, 0.2], test_loss=[1.0, value]))
    assert read_run(path).state == "diverged" and read_run(path).summary is not None


def test_a_run_before_its_first_round(write_run):
    record = read_run(write_run())
    assert (record.state, record.rounds, record.digest) == ("interrupted", 0, None)


def test_a_summary_of_other_rounds_is_of_no_finished_run(write_run):
    path = write_run(rows=make_rows([0.1, 0.2]))
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "rounds": 7}))
    assert read_run(path).state == "interrupted"


def test_cumulated_columns(write_run):
    record = read_run(write_run(rows=make_rows([None, 0.5])))
    assert record.points("bytes") == [(1, 30), (2, 60)]
    assert record.points("total_seconds") == [(1, 1.75), (2, 3.5)]
    assert record.points("test_accuracy") == [(2, 0.5)]
    assert record.points("nothing") == []


def test_folders_that_are_none(tmp_path, write_run):
    with pytest.raises(RunError, match="nowhere: there is no such folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(RunError, match="holds no run"):
        read_run(tmp_path)
    run = write_run()
    with pytest.raises(RunError, match=r"holds no run itself, but 1 in it; name them: .*/\*$"):
        read_run(run.parent)
    (tmp_path / "table.json").write_text("{}")
    found = pytest.raises(RunError, match=f"holds no run but those of a table, such as {run}; name")
    with found:
        read_run(tmp_path)
    (page := tmp_path / "report.html").write_text("")
    with pytest.raises(RunError, match=f"such as {run}; name them, or open its page, {page}$"):
        read_run(tmp_path)
    early = tmp_path / "early"
    early.mkdir()
    (early / "failed.json").write_text(
        '{"error": "method.split=7: must be below 4", "formula": {}}'
    )
    with pytest.raises(RunError, match="holds no run, which failed before it had settings: method"):
        read_run(early)
    with pytest.raises(SettingsError, match="is given twice"):
        read_runs([run, run.parent / "." / "run"])
    with pytest.raises(SettingsError, match="at least one"):
        read_runs([])


def test_settings_on_which_a_result_depends(write_run):
    first, second = (
        result_settings(read_run(write_run(name, **overrides)).settings)
        for name, overrides in {
            "a": {"seed": 1, "engine.actors": 2, "checkpoint_every": 3},
            "b": {"seed": 2, "trace": True},
        }.items()
    )
    assert first == second
    assert first["engine.precision"] == "fp32" and first["rounds"] == 5
