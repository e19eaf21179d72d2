"""A tuner with a pruner, killed at any write to its storage: the same trials and values."""

from __future__ import annotations

import shutil

import pytest

from raysim.tuning.slots.report import SlotLost
from raysim.tuning.studies.samplers import SearchOptions
from tests.tuning.common import make_search, make_tuner, values

PRUNERS = {
    "median": {"n_startup_trials": 1, "n_warmup_steps": 1},
    "successive-halving": {"min_resource": 1, "reduction_factor": 2},
    "hyperband": {"min_resource": 1, "max_resource": 4, "reduction_factor": 3},
}
WRITES = (
    "create_new_trial",
    "set_trial_param",
    "set_trial_intermediate_value",
    "set_trial_system_attr",
    "set_trial_user_attr",
    "set_trial_state_values",
)
TRIALS = 4


def started(folder, pruner, journal=False):
    options = SearchOptions("random", pruner, pruner_options=PRUNERS[pruner])
    storage = f"journal:///{folder / 'study.journal'}" if journal else None
    settings = {"rounds": 4, "checkpoint_every": 1, "fraction": 0.05}
    search = make_search(folder, options, storage, **settings)
    return search, make_tuner(search, folder)


class Killed(BaseException):
    """The end of a tuner's process."""


def watch_writes(monkeypatch, search, kill_at=None):
    """Record the writes to the storage; raise Killed before one."""
    storage, seen = search.study._storage._database, []

    def watched(name, write):
        def write_or_die(*arguments):
            if len(seen) == kill_at:
                raise Killed
            seen.append(name)
            return write(*arguments)

        return write_or_die

    for name in WRITES:
        monkeypatch.setattr(storage, name, watched(name, getattr(storage, name)))
    return seen


def kill_and_resume(folder, pruner, monkeypatch, number, journal=False):
    """Return the trials of a study whose tuner is killed before a write, and started again."""
    folder.mkdir()
    search, tuner = started(folder, pruner, journal)
    with monkeypatch.context() as change, pytest.raises(Killed):
        watch_writes(change, search, number)
        tuner.run(TRIALS, 1)
    search.close()
    search, tuner = started(folder, pruner, journal)
    tuner.run(TRIALS, 1)
    found = values(search)
    search.close()
    shutil.rmtree(folder)
    return found


@pytest.fixture(params=[*list(PRUNERS)[:2], pytest.param("hyperband", marks=pytest.mark.full)])
def straight(request, tmp_path, local_slots, monkeypatch):
    """A pruner, the trials of an undisturbed study, and its writes."""
    (tmp_path / "straight").mkdir()
    search, tuner = started(tmp_path / "straight", request.param)
    with monkeypatch.context() as change:
        seen = watch_writes(change, search)
        tuner.run(TRIALS, 1)
    assert "PRUNED" in [trial[2] for trial in values(search)]
    return request.param, values(search), seen


def test_killed_around_the_decision_that_ends_a_trial(straight, tmp_path, monkeypatch):
    """Between its report and the pruner's decision, within the decision, and before its end."""
    pruner, expected, seen = straight
    pruned = next(number for number, trial in enumerate(expected) if trial[2] == "PRUNED")
    ends = [place for place, name in enumerate(seen) if name == "set_trial_state_values"]
    last = ends[pruned]
    first = max(n for n in range(last) if seen[n] == "set_trial_intermediate_value")
    for number in range(first, last + 1):
        assert kill_and_resume(tmp_path / str(number), pruner, monkeypatch, number) == expected


@pytest.mark.full
def test_killed_at_any_write(straight, tmp_path, monkeypatch):
    pruner, expected, seen = straight
    for number in range(len(seen)):
        assert kill_and_resume(tmp_path / str(number), pruner, monkeypatch, number) == expected


def test_killed_with_a_journal(straight, tmp_path, monkeypatch):
    pruner, expected, seen = straight
    number = len(seen) // 2
    assert kill_and_resume(tmp_path / "journal", pruner, monkeypatch, number, True) == expected


def test_evaluations_that_a_lost_slot_has_not_reported_are_judged(straight, tmp_path, local_slots):
    """The slot is lost after its run has committed an evaluation, at each start of a run."""
    pruner, expected, _ = straight
    (tmp_path / "lost").mkdir()
    search, tuner = started(tmp_path / "lost", pruner)
    wait, lost = local_slots.wait, []

    def losing():
        lane, report = wait()
        start = len(local_slots.started)
        if report.is_evaluation and len(lost) < 2 * TRIALS and start not in lost:
            lost.append(start)
            local_slots._actor.advance({lane: None})
            local_slots._free.append(lane)
            return lane, SlotLost("The node died.", suspicious=False)
        return lane, report

    local_slots.wait = losing
    tuner.run(TRIALS, 1)
    assert values(search) == expected and lost
