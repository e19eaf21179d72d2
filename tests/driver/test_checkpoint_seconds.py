"""Seconds of checkpoints: on disk with their round at any moment, also where a run was killed."""

from __future__ import annotations

import shutil

import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import raysim
from raysim.storage.checkpoints import Checkpoints
from tests.tasks import make_settings, make_task

SIZES = (40,) * 4


def seconds_in(path):
    """Return the seconds of the checkpoints of each round, as they are on disk."""
    rows = pq.read_table(path / "metrics.parquet").to_pylist()
    return {row["round"]: row["checkpoint_seconds"] for row in rows}


def test_a_run_that_is_killed_after_a_checkpoint_has_its_seconds(tmp_path, monkeypatch):
    """The disk is copied when a checkpoint has just become visible: so a killed run leaves it."""
    save = Checkpoints.save

    def save_and_copy(self, checkpoint, *arguments, **named):
        save(self, checkpoint, *arguments, **named)
        shutil.copytree(tmp_path / "run", tmp_path / f"killed-{checkpoint.run.number}")

    monkeypatch.setattr(Checkpoints, "save", save_and_copy)
    settings = make_settings(tmp_path / "run", rounds=5, checkpoint_every=1)
    raysim.run(settings, make_task(SIZES))
    monkeypatch.undo()
    whole = seconds_in(tmp_path / "run")
    assert list(whole) == [1, 2, 3, 4, 5] and all(value > 0 for value in whole.values())
    for number in whole:
        killed = tmp_path / f"killed-{number}"
        before = {n: value for n, value in whole.items() if n <= number}
        assert seconds_in(killed) == before
    half_written = tmp_path / "killed-3/checkpoints/.round_000004.node.4711.aside"
    half_written.mkdir()
    raysim.resume(tmp_path / "killed-3", make_task(SIZES))
    assert not half_written.exists()
    resumed = seconds_in(tmp_path / "killed-3")
    assert {n: resumed[n] for n in (1, 2, 3)} == {n: whole[n] for n in (1, 2, 3)}
    assert list(resumed) == [1, 2, 3, 4, 5] and all(value > 0 for value in resumed.values())


def test_rounds_without_a_checkpoint_have_none_and_the_last_has_one(tmp_path):
    settings = make_settings(tmp_path, rounds=5, checkpoint_every=3)
    result = raysim.run(settings, make_task(SIZES))
    found = seconds_in(tmp_path)
    assert [n for n, value in found.items() if value > 0] == [3, 5]
    assert pq.read_table(tmp_path / "metrics.parquet").equals(result.metrics)
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("seconds/checkpoint")
    assert {e.step: e.value for e in events} == pytest.approx(found)
    rows = result.metrics.to_pylist()
    names = ("seconds", "evaluation_seconds", "checkpoint_seconds")
    assert result.summary["seconds"] == pytest.approx(sum(row[n] for row in rows for n in names))
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "round_000003",
        "round_000005",
    ]


def test_the_last_round_is_checkpointed_once(tmp_path, monkeypatch):
    saved = []
    save = Checkpoints.save

    def count(self, checkpoint, *arguments, **named):
        saved.append(checkpoint.run.number)
        save(self, checkpoint, *arguments, **named)

    monkeypatch.setattr(Checkpoints, "save", count)
    raysim.run(make_settings(tmp_path / "every", checkpoint_every=1), make_task(SIZES))
    assert saved == [1, 2, 3]
    saved.clear()
    reached = make_settings(tmp_path / "target", checkpoint_every=100, target_accuracy=0.01)
    raysim.run(reached, make_task(SIZES))
    assert saved == [1]


def test_an_interrupted_run_has_the_seconds_of_its_last_checkpoint(tmp_path):
    class Stop(raysim.Listener):
        def round_done(self, row):
            if row["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path, checkpoint_every=10), make_task(SIZES), Stop())
    stopped = seconds_in(tmp_path)
    assert stopped[1] == 0 and stopped[2] > 0
    rows = raysim.resume(tmp_path, make_task(SIZES)).metrics.to_pylist()
    assert rows[1]["checkpoint_seconds"] == stopped[2]
    assert [row["round"] for row in rows if row["checkpoint_seconds"] > 0] == [2, 3]


def test_a_run_that_ended_before_its_summary_is_finished(tmp_path):
    result = raysim.run(make_settings(tmp_path), make_task(SIZES))
    model = (tmp_path / "model.safetensors").read_bytes()
    for name in ("summary.json", "model.safetensors"):
        (tmp_path / name).unlink()
    again = raysim.resume(tmp_path, make_task(SIZES))
    assert again.summary == result.summary and again.metrics.equals(result.metrics)
    assert (tmp_path / "model.safetensors").read_bytes() == model
