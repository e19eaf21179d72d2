"""A tuner with stacked trials, killed at any write: the same trials and values."""

from __future__ import annotations

import os
import shutil

import pytest

from raysim.tuning.studies.samplers import SearchOptions
from tests.tuning.common import make_search, make_tuner, values
from tests.tuning.test_killed import PRUNERS, Killed, watch_writes

LR = {"low": 1e-3, "high": 0.5, "log": True}
RATES = [0.01, 0.05, 0.2, 1e30]
"""With the last one a trial diverges."""
TRIALS, STACK = 6, 3
TPE = {"sampler": "tpe", "sampler_options": {"n_startup_trials": 1}}
STUDIES = {
    "halving": {"pruner": "successive-halving", **TPE},
    "median": {"pruner": "median", "sampler": "random"},
    "hyperband": {"pruner": "hyperband", **TPE},
    "diverging": {"pruner": "none", **TPE},
    "seeds": {"pruner": "none", "seeds": 2, **TPE},
    "two objectives": {"pruner": "none", "objectives": ("accuracy", "bytes"), **TPE},
}
FIRST = {
    "diverging": [{"local.lr": 0.05}, {"local.lr": 1e30}],
    "two objectives": [{"local.lr": 0.002}],  # the others of its turn are better
}


def started(folder, name):
    given = STUDIES[name]
    pruning = PRUNERS.get(given["pruner"], {})
    options = SearchOptions(stack=STACK, pruner_options=pruning, **given)
    space = {"local.lr": RATES if name == "diverging" else LR}
    settings = {"rounds": 4, "checkpoint_every": 2, "fraction": 0.05}
    table = {"space": space, "first": FIRST.get(name, [])}
    search = make_search(folder, options, table=table, **settings)
    return search, make_tuner(search, folder)


def run(folder, name):
    """Run a study, or resume it; return its outcomes."""
    search, tuner = started(folder, name)
    tuner.run(TRIALS, 1)
    found = outcomes(search)
    search.close()
    return found


def outcomes(search):
    """Return the trials of a study, with their places and the turns in which they began."""
    begun = [trial.user_attrs.get("begun") for trial in search.study.get_trials()]
    return values(search), begun


def copy_of(folder):
    return folder.with_name("killed")


def kill_slot(folder, slots):
    """End the runs of a slot, and leave the copy of their folders: to end, they checkpoint."""
    for lane in range(STACK):
        slots._actor._lanes.stop(lane)
    shutil.rmtree(folder)
    copy_of(folder).rename(folder)


def killed_at(folder, name, monkeypatch, slots, number):
    """Return the outcomes of a study whose tuner is killed before a write, and started again."""
    folder.mkdir()
    search, tuner = started(folder, name)
    with monkeypatch.context() as change, pytest.raises(Killed):
        watch_writes(change, search, number)
        tuner.run(TRIALS, 1)
    search.close()
    shutil.copytree(folder, copy_of(folder))
    kill_slot(folder, slots)
    found = run(folder, name)
    shutil.rmtree(folder)
    return found


@pytest.fixture
def straight(tmp_path, local_slots, monkeypatch):
    """Run an undisturbed study; return its outcomes and its writes."""

    local_slots._key = str

    def undisturbed(name):
        (tmp_path / "straight").mkdir()
        search, tuner = started(tmp_path / "straight", name)
        with monkeypatch.context() as change:
            seen = watch_writes(change, search)
            tuner.run(TRIALS, 1)
        assert tuner.listener.notes == []
        return outcomes(search), seen

    return undisturbed


@pytest.mark.parametrize(
    ("name", "every"),
    [("halving", 17), *(pytest.param(name, 1, marks=pytest.mark.full) for name in STUDIES)],
)
def test_killed_at_a_write_to_the_storage(
    name, every, straight, tmp_path, monkeypatch, local_slots
):
    expected, seen = straight(name)
    states = {trial[2] for trial in expected[0]}
    assert ("PRUNED" in states) == (STUDIES[name]["pruner"] != "none")
    assert ("FAIL" in states) == (name == "diverging")
    for number in range(every - 1, len(seen), every):
        found = killed_at(tmp_path / f"{number}", name, monkeypatch, local_slots, number)
        assert found == expected, (number, seen[number])


def test_killed_after_the_first_end_of_a_turn(straight, tmp_path, monkeypatch, local_slots):
    """The next trial is not drawn before the others of the turn have ended."""
    expected, seen = straight("two objectives")
    changes = [place for place, write in enumerate(seen) if write == "set_trial_state_values"]
    number = changes[len(FIRST["two objectives"])] + 1  # a first trial has waited in the storage
    found = killed_at(tmp_path / "one", "two objectives", monkeypatch, local_slots, number)
    assert found == expected


def watch_files(monkeypatch, folder, kill_at=None):
    """Record the files of trials that are written; copy the folder and raise Killed before one."""
    replace, seen = os.replace, []

    def replace_or_die(source, target, **named):
        if "trials" in str(target):
            if len(seen) == kill_at:
                shutil.copytree(folder, copy_of(folder))
                raise Killed
            seen.append(str(target))
        replace(source, target, **named)

    monkeypatch.setattr(os, "replace", replace_or_die)
    return seen


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.full)])
def test_killed_at_a_file_of_one_of_the_trials(every, tmp_path, monkeypatch, local_slots):
    """Some members have committed the round, one has half of its files, others have none."""
    (tmp_path / "straight").mkdir()
    with monkeypatch.context() as change:
        seen = watch_files(change, tmp_path)
        expected = run(tmp_path / "straight", "halving")
    assert len(seen) > 2 * 23
    for number in range(every - 1, len(seen), every):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        with monkeypatch.context() as change, pytest.raises(Killed):
            watch_files(change, folder, number)
            run(folder, "halving")
        kill_slot(folder, local_slots)
        assert run(folder, "halving") == expected, (number, seen[number])
        shutil.rmtree(folder)
