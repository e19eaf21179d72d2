"""A study whose database is gone takes back the trials in its folder."""

from __future__ import annotations

import json
import shutil

import pytest

import raysim
from tests.tuning.common import make_search, make_tuner, summaries, values
from tests.tuning.test_interrupted import RANDOM, ROUNDS, states


def started(folder, **overrides):
    search = make_search(folder, RANDOM, **{**ROUNDS, **overrides})
    return search, make_tuner(search, folder)


def lose_storage(folder):
    for path in folder.glob("study.db*"):
        path.unlink()


def test_its_trials_are_those_of_a_study_whose_storage_stays(tmp_path, local_slots):
    (tmp_path / "whole").mkdir()
    whole, tuner = started(tmp_path / "whole")
    tuner.run(4, None)
    (tmp_path / "lost").mkdir()
    _, tuner = started(tmp_path / "lost")
    tuner.run(2, None)
    before = summaries(tmp_path / "lost")
    lose_storage(tmp_path / "lost")
    again, tuner = started(tmp_path / "lost")
    tuner.run(4, None)
    assert [trial.params for trial in again.study.get_trials()] == [
        trial.params for trial in whole.study.get_trials()
    ]
    assert values(again) == values(whole) and states(again) == ["COMPLETE"] * 4
    after = summaries(tmp_path / "lost")
    assert {number: after[number] for number in before} == before  # read, not run again
    assert [note for note in tuner.listener.notes if "2 trials are not in the storage" in note]
    again, tuner = started(tmp_path / "lost")
    tuner.run(4, None)
    assert len(again.study.get_trials()) == 4


def test_a_trial_without_a_run_has_failed(tmp_path, local_slots):
    search, tuner = started(tmp_path)
    tuner.run(3, None)
    known = values(search)
    lose_storage(tmp_path)
    shutil.rmtree(next(tmp_path.rglob("trials/0001")))
    again, tuner = started(tmp_path)
    tuner.run(3, None)
    assert states(again) == ["COMPLETE", "FAIL", "COMPLETE"]
    assert [each for each in values(again) if each[2] == "COMPLETE"] == [known[0], known[2]]


def test_runs_with_other_settings_are_refused(tmp_path, local_slots):
    _, tuner = started(tmp_path)
    tuner.run(1, None)
    lose_storage(tmp_path)
    _, tuner = started(tmp_path, rounds=3)
    with pytest.raises(raysim.RunError) as refused:
        tuner.run(2, None)
    assert "is not in this storage, and trial 0 has rounds=2 (here 3)" in str(refused.value)
    about = next(tmp_path.rglob("study.json"))
    about.write_text(json.dumps(json.loads(about.read_text()) | {"name": "another"}))
    lose_storage(tmp_path)
    _, tuner = started(tmp_path)
    with pytest.raises(raysim.RunError, match="a study that is not in this storage; choose an"):
        tuner.run(2, None)
