"""Studies whose machine, database or tuner fails: nothing lost, nothing silently wrong."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import raysim
from raysim.errors import MachineError
from raysim.tuning.search.search import Search
from raysim.tuning.slots.report import Report, SlotLost
from raysim.tuning.studies.samplers import SearchOptions
from tests.tuning.common import make_search, make_tuner, summaries, values

RANDOM = SearchOptions(sampler="random")
ROUNDS = {"rounds": 2}


def states(search):
    return [trial.state.name for trial in search.study.get_trials(deepcopy=False)]


def started(tmp_path):
    search = make_search(tmp_path, RANDOM, **ROUNDS)
    return search, make_tuner(search, tmp_path)


@pytest.fixture
def straight(tmp_path, local_slots):
    """The values of a study that nothing happened to."""
    folder = tmp_path / "straight"
    folder.mkdir()
    search, tuner = started(folder)
    tuner.run(2, None)
    local_slots.started.clear()
    return values(search)


def test_a_full_disk_stops_the_study_which_goes_on_later(
    tmp_path, local_slots, straight, monkeypatch
):
    mkdir = Path.mkdir

    def full(path, *arguments, **options):
        if path.name == "0001":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        mkdir(path, *arguments, **options)

    search, tuner = started(tmp_path)
    with monkeypatch.context() as disk:
        disk.setattr(Path, "mkdir", full)
        with pytest.raises(MachineError) as caught:
            tuner.run(4, None)
    assert states(search) == ["COMPLETE", "RUNNING"]
    assert str(caught.value) == (
        f"trial 1: out={tmp_path}/out/trials/0001: cannot be written: No space left on device;"
        " fix this, then type the same command to resume the study"
    )
    search, tuner = started(tmp_path)
    tuner.run(2, None)
    assert values(search) == straight and local_slots.started == [0, 1, 1]


def test_trials_are_forced_to_go_on(tmp_path, local_slots, monkeypatch):
    rounds = raysim.rounds

    def interrupted(*args, **kwargs):
        with rounds(*args, **kwargs) as run:
            next(run)
        raise MachineError("the disk is full")

    with monkeypatch.context() as disk:
        disk.setattr("raysim.rounds", interrupted)
        with pytest.raises(MachineError, match="the disk is full"):
            started(tmp_path)[1].run(1, None)
    monkeypatch.setattr("raysim.methods.fedprox.FedProx.revision", 99)
    search, tuner = started(tmp_path)
    tuner.run(1, None)
    summary = summaries(tmp_path)[0]
    assert states(search) == ["COMPLETE"] and "(here 99)" in summary["forced"][0]


def test_the_command_says_it_in_one_line_and_another_code(tune, local_slots):
    local_slots.fault = lambda number: Report(machine_error="the disk is full")
    code, _, err = tune("--trials", "3")
    assert code != 0 and err.count("\n") == 1
    assert err == (
        "raysim: trial 0: the disk is full; fix this, then type the same command to resume the"
        " study\n"
    )


def test_a_trial_that_kills_its_slots_fails_and_the_study_goes_on(tmp_path, local_slots):
    lost = SlotLost("The actor died.", suspicious=True)
    local_slots.fault = lambda number: lost if number == 0 else None
    search, tuner = started(tmp_path)
    tuner.run(2, None)
    assert states(search) == ["FAIL", "COMPLETE"]
    failed = search.study.get_trials()[0].user_attrs["failed"]
    assert failed == "lost its slot 3 times: The actor died."
    assert local_slots.started == [0, 0, 0, 1]
    assert (
        tuner.listener.notes
        == [
            "trial 0: its slot was lost; resuming from its checkpoint",
        ]
        * 2
    )


def test_a_trial_is_not_blamed_for_lost_nodes(tmp_path, local_slots, straight):
    losses = [SlotLost("The node died.", suspicious=False)] * 5
    local_slots.fault = lambda number: losses.pop() if losses else None
    search, tuner = started(tmp_path)
    tuner.run(2, None)
    assert values(search) == straight and local_slots.started == [0] * 6 + [1]


def kill_at_tell(monkeypatch, tuner, trials):
    """Run a tuner that is killed when it is about to record its first finished trial."""
    with monkeypatch.context() as change:
        change.setattr(Search, "tell", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tuner.run(trials, None)


def test_the_finished_trial_of_a_killed_tuner_is_recorded_not_run(
    tmp_path, local_slots, straight, monkeypatch
):
    search, tuner = started(tmp_path)
    kill_at_tell(monkeypatch, tuner, 2)
    assert states(search) == ["RUNNING"] and sorted(summaries(tmp_path)) == [0]
    search, tuner = started(tmp_path)
    tuner.run(2, None)
    assert values(search) == straight and local_slots.started == [0, 1]
    assert tuner.listener.ended == [0, 1]


def test_a_finished_run_of_other_settings_is_not_taken(tmp_path, local_slots, monkeypatch):
    search, tuner = started(tmp_path)
    kill_at_tell(monkeypatch, tuner, 1)
    folder = tmp_path / "out/trials/0000"
    shutil.rmtree(folder)  # a version that ran half-drawn trials took the preset's value
    engine = {"out": str(folder), "engine.backend": "inline"}
    raysim.run(search.resolved.settings.override(engine))
    search, tuner = started(tmp_path)
    tuner.run(1, None)
    assert states(search) == ["FAIL"]
    failed = search.study.get_trials()[0].user_attrs["failed"]
    assert failed.endswith("trials/0000 holds a run with another local.lr")


def test_a_last_trial_that_was_enqueued_but_not_begun_is_run(tmp_path, local_slots):
    search, tuner = started(tmp_path)
    search.claim()
    search.study.enqueue_trial({"local.lr": 0.25, "method.mu": 0.1})
    tuner.run(1, None)
    (trial,) = search.study.get_trials()
    assert trial.state.name == "COMPLETE" and trial.params["local.lr"] == 0.25


def test_a_deleted_database_stops_the_study(tmp_path, local_slots):
    path = tmp_path / "study.db"
    local_slots.fault = lambda number: path.unlink() if number == 1 else None
    _, tuner = started(tmp_path)
    with pytest.raises(MachineError, match=f"storage=sqlite:///{path}: the file is gone; fix this"):
        tuner.run(4, None)
    assert local_slots.started == [0, 1] and not path.exists()


def test_a_locked_database_stops_the_study_which_goes_on_later(tmp_path, local_slots, straight):
    path, locked = tmp_path / "study.db", []
    url = f"sqlite:///{path}?timeout=0.1"

    def lock(number):
        if number == 1:
            locked.append(sqlite3.connect(path))
            locked[0].execute("BEGIN EXCLUSIVE")

    local_slots.fault = lock
    search = make_search(tmp_path, RANDOM, url, **ROUNDS)
    with pytest.raises(MachineError, match=r"storage=sqlite.*: database is locked; fix this, then"):
        make_tuner(search, tmp_path).run(4, None)
    with closing(locked[0]):
        locked[0].rollback()
    local_slots.fault = lambda number: None
    search, tuner = started(tmp_path)
    assert states(search) == ["COMPLETE", "RUNNING"]
    tuner.run(2, None)
    assert values(search) == straight


def test_a_refused_tuner_changes_nothing(tmp_path):
    first = make_search(tmp_path)
    folder = make_tuner(first, tmp_path).folder
    with folder.use():
        folder.match(first.study)
        first.claim()
        before = first.study.user_attrs
        second = make_search(tmp_path, rounds=9)
        with pytest.raises(raysim.RunError, match="another tuner is using this folder"):
            make_tuner(second, tmp_path).run(1, None)
        elsewhere = make_tuner(second, tmp_path / "elsewhere")
        with pytest.raises(raysim.RunError, match="has its trials in another folder"):
            elsewhere.run(1, None)
        assert make_search(tmp_path).study.user_attrs == before


def finished_study(tmp_path):
    search, tuner = started(tmp_path)
    tuner.run(1, None)
    search.close()


def changed(path, statement):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE trial_values SET value = value + 1e-9", "values"),
        ("UPDATE trial_params SET param_value = 0.1 WHERE param_name = 'local.lr'", "local.lr"),
    ],
)
def test_a_changed_record_of_a_completed_trial_is_named(tmp_path, local_slots, statement, named):
    finished_study(tmp_path)
    changed(tmp_path / "study.db", statement)
    _, tuner = started(tmp_path)
    with pytest.raises(raysim.RunError, match=f"^trial 0: its {named} in .* differ; restore the"):
        tuner.run(2, None)
    assert local_slots.started == [0]


def test_a_lost_study_file_is_written_again_where_the_runs_are(tmp_path, local_slots):
    finished_study(tmp_path)
    about = tmp_path / "out/study.json"
    before = about.read_text()
    about.unlink()
    started(tmp_path)[1].run(1, None)
    assert about.read_text() == before


def test_a_damaged_folder_stops_the_study_not_the_trial(tmp_path, local_slots):
    finished_study(tmp_path)
    trials = tmp_path / "out/trials"
    (trials / "0001").write_text("garbage")
    search, tuner = started(tmp_path)
    with pytest.raises(MachineError, match=r"trial 1: .*0001 is not a folder.*; fix this, then"):
        tuner.run(2, None)
    assert states(search) == ["COMPLETE", "RUNNING"]
    shutil.rmtree(trials)
    trials.symlink_to("nowhere")
    with pytest.raises(MachineError, match="out/trials: no folder that can be written: File exis"):
        started(tmp_path)[1].run(2, None)


def test_a_study_deleted_from_its_database_is_named(tmp_path, local_slots):
    tables = ("trial_params", "trial_intermediate_values", "trials", "studies")

    def delete(number):
        for table in tables:
            changed(tmp_path / "study.db", f"DELETE FROM {table}")  # noqa: S608

    local_slots.fault = delete
    with pytest.raises(raysim.RunError, match="study blobs was deleted; restore it, or choose"):
        started(tmp_path)[1].run(2, None)


@pytest.mark.parametrize("content", [b"garbage " * 200, None])
def test_a_damaged_database_is_refused_with_advice(tmp_path, content):
    path = tmp_path / "study.db"
    path.write_bytes(content) if content else path.mkdir()
    with pytest.raises(raysim.RunError, match="restore the file, or choose another --out"):
        make_search(tmp_path)
