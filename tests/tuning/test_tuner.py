"""Whole studies on Ray: figures, numbers, faults, results."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

import raysim
from raysim.tuning.folder import StudyFolder
from raysim.tuning.slots.fitting import count_slots
from raysim.tuning.slots.pool import open_slots
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.tuner import Tuner
from tests.tuning.common import RecordingListener, make_search, make_tuner, summaries, values


def test_a_study(tmp_path, local_slots):
    search = make_search(tmp_path)
    result = make_tuner(search, tmp_path).run(5, 2)
    trials = search.study.get_trials()
    found = summaries(tmp_path)
    assert [t.number for t in trials] == [0, 1, 2, 3, 4] == sorted(found)
    for trial in trials:
        summary = found[trial.number]
        assert trial.value == summary["final_holdout_accuracy"]
        table = pq.read_table(tmp_path / "out" / "trials" / f"{trial.number:04d}/metrics.parquet")
        rows = {row["round"]: row["holdout_accuracy"] for row in table.to_pylist()}
        assert trial.intermediate_values == {number: rows[number] for number in (1, 2, 3, 4)}
    best = max(trials, key=lambda trial: trial.value)
    assert [trial.number for trial in result.best] == [best.number]
    # The file is a preset: it gives the same run again.
    path = result.presets[best.number]
    inline = {"out": str(tmp_path / "again"), "engine.backend": "inline"}
    again = raysim.run(raysim.load_config(path, inline))
    assert again.summary["final_holdout_accuracy"] == best.value


def test_a_finished_study_says_so_and_starts_nothing(tmp_path, local_slots, monkeypatch):
    result = make_tuner(make_search(tmp_path), tmp_path).run(2, 1)
    monkeypatch.setattr("raysim.tuning.tuner.open_slots", pytest.fail)
    tuner = make_tuner(make_search(tmp_path), tmp_path)
    again = tuner.run(2, 1)
    assert [trial.number for trial in again.best] == [trial.number for trial in result.best]
    assert tuner.listener.notes == ["the study is finished; nothing is left to do"]


def test_no_trial_begins_after_the_timeout(tmp_path, local_slots, monkeypatch):
    search, now = make_search(tmp_path), [0.0]
    monkeypatch.setattr("raysim.tuning.tuner.monotonic", lambda: now[0])

    def pass_a_minute(run):
        now[0] += 60

    local_slots.fault = pass_a_minute
    make_tuner(search, tmp_path).run(5, 1, timeout=90)
    assert [trial.state.name for trial in search.study.get_trials()] == ["COMPLETE"] * 2
    make_tuner(search, tmp_path).run(3, 1)
    assert len(search.study.get_trials()) == 3


@pytest.mark.full
def test_the_same_study_twice_gives_the_same_trials(tmp_path, local_slots):
    found = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        search = make_search(tmp_path / name, SearchOptions(pruner="median"))
        make_tuner(search, tmp_path / name).run(12, 1)  # the last two are not drawn at random
        found.append(values(search))
        states = [trial[2] for trial in found[-1]]
        assert len(states) == 12 and set(states) == {"COMPLETE", "PRUNED"}
        # A pruned trial stopped there and then, and its slot took the next.
        finished = {number for number, state in enumerate(states) if state == "COMPLETE"}
        assert set(summaries(tmp_path / name)) == finished
        for folder in (tmp_path / name / "out" / "trials").iterdir():
            reported = found[-1][int(folder.name)][4]
            assert pq.read_table(folder / "metrics.parquet")["round"].to_pylist() == [*reported]
    assert found[0] == found[1] and len({tuple(trial[1].items()) for trial in found[0]}) == 12


def test_a_trial_that_fails_does_not_end_the_study(tmp_path, local_slots):
    # The largest learning rates diverge.
    overrides = {"method.mu": 0.0, "local.momentum": 0.99, "local.weight_decay": 1e3}
    search = make_search(tmp_path, SearchOptions(sampler="grid"), **overrides)
    make_tuner(search, tmp_path).run(100, 1)
    states = [trial[2] for trial in values(search)]
    assert len(states) == 9  # all points of the grid
    assert {"COMPLETE", "FAIL"} == set(states)
    failed = search.study.get_trials()[states.index("FAIL")]
    assert "client" in failed.user_attrs["failed"]


def test_a_second_tuner_is_refused(tmp_path):
    search = make_search(tmp_path)
    refused = pytest.raises(raysim.RunError, match="another tuner is using this folder")
    with make_tuner(search, tmp_path).folder.use(), refused:
        make_tuner(search, tmp_path).run(1, 1)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(raysim.RunError, match="out: cannot be written: "):
        make_tuner(make_search(tmp_path), tmp_path).run(1, 1)


def test_a_study_and_its_folder_belong_together(tmp_path):
    search, out = make_search(tmp_path), tmp_path / "out"
    folder = StudyFolder(out)
    with folder.use():
        folder.match(search.study)
        search.ask()
    StudyFolder(out.rename(tmp_path / "moved")).match(search.study)  # which changes nothing
    with pytest.raises(raysim.RunError, match="study blobs has its trials in another folder"):
        make_tuner(search, tmp_path).run(1, 1)
    other = make_search(tmp_path, storage=f"sqlite:///{tmp_path / 'other.db'}")
    with pytest.raises(raysim.RunError, match="a study that is not in this storage; choose an"):
        Tuner(other, tmp_path / "moved", RecordingListener()).run(1, 1)


@pytest.mark.full
@pytest.mark.parametrize(("jobs", "gpus"), [(1, 1.0), (2, 0.5)])
def test_trials_with_actors_of_their_own(tmp_path, shared_ray, jobs, gpus):
    # They take all that the cluster has, and yet none waits for another.
    overrides = {"engine.actors": 2, "engine.gpus_per_actor": gpus}
    search = make_search(tmp_path, **overrides)
    make_tuner(search, tmp_path).run(2 * jobs - 1, jobs)
    assert [trial[2] for trial in values(search)] == ["COMPLETE"] * (2 * jobs - 1)
    path = tmp_path / "out" / "trials" / "0000" / "environment.json"
    environment = json.loads(path.read_text())
    assert environment["backend"] == "ray" and len(environment["actors"]) == 2
    assert all(actor["gpus"] for actor in environment["actors"])


@pytest.mark.parametrize(("trials", "jobs", "asked"), [(1, 100, 1), (3, 2, 2), (2, None, None)])
def test_no_slot_starts_for_want_of_a_trial(tmp_path, local_slots, trials, jobs, asked):
    """A hundred that start on two cores keep one trial waiting for many minutes."""
    search = make_search(tmp_path, rounds=1)
    make_tuner(search, tmp_path).run(trials, jobs)
    assert local_slots.asked == asked
    make_tuner(search, tmp_path).run(trials + 1, jobs)
    assert local_slots.asked == (1 if jobs else None)


def test_more_trials_at_a_time_than_fit(tmp_path, shared_ray):
    resolved = make_search(tmp_path, **{"engine.gpus_per_actor": 0.5}).resolved
    with (
        pytest.raises(raysim.SettingsError, match=r"jobs=5: 5 runs of 1 actors do not fit"),
        open_slots(resolved.settings, 5, print),
    ):
        pass


def test_a_dry_run_counts_the_slots_that_fit(tmp_path, shared_ray):
    settings = make_search(tmp_path, **{"engine.gpus_per_actor": 0.5}).resolved.settings
    assert [count_slots(settings, jobs) for jobs in (None, 3)] == [4, 3]


def test_a_study_says_once_that_it_leaves_gpus_unused(tmp_path, resident_actors):
    search = make_search(tmp_path, rounds=1)
    tuner = make_tuner(search, tmp_path)
    tuner.run(2, 1)
    said = "engine.gpus_per_actor=0: training on the CPU, and leaving GPUs unused: 2;"
    assert [said in line for line in tuner.listener.notes].count(True) == 1
