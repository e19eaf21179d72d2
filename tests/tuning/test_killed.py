"""A tuner with a pruner, killed at any write to its storage: the same trials and values."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from raysim.tuning.slots.report import SlotLost
from raysim.tuning.studies.samplers import SearchOptions
from tests.tuning.common import make_search, make_tuner, values
from tests.tuning.copies import Copies

PRUNERS = {
    "median": {"n_startup_trials": 1, "n_warmup_steps": 1},
    "successive-halving": {"min_resource": 1, "reduction_factor": 2},
    "hyperband": {"min_resource": 1, "max_resource": 4, "reduction_factor": 3},
}
TRIALS = 4


def started(folder, pruner, journal=False):
    options = SearchOptions("random", pruner, pruner_options=PRUNERS[pruner])
    storage = f"journal:///{folder / 'study.journal'}" if journal else None
    settings = {"rounds": 4, "checkpoint_every": 1, "fraction": 0.05}
    search = make_search(folder, options, storage, **settings)
    return search, make_tuner(search, folder)


def run(folder, pruner, journal=False, copies=None):
    """Run a study, or resume it; return its trials."""
    folder.mkdir(exist_ok=True)
    search, tuner = started(folder, pruner, journal)
    with copies.before_writes(search) if copies else nullcontext():
        tuner.run(TRIALS, 1)
    found = values(search)
    search.close()
    return found


@pytest.fixture(params=[*list(PRUNERS)[:2], pytest.param("hyperband", marks=pytest.mark.full)])
def pruner(request, local_slots):
    return request.param


def test_killed_around_the_decision_that_ends_a_trial(pruner, tmp_path):
    """Between its report and the pruner's decision, within the decision, and before its end."""
    copies = Copies(tmp_path / "study")
    expected = run(tmp_path / "study", pruner, copies=copies)
    pruned = next(number for number, trial in enumerate(expected) if trial[2] == "PRUNED")
    ends = [place for place, name in enumerate(copies.seen) if name == "set_trial_state_values"]
    last = ends[pruned]
    first = max(n for n in range(last) if copies.seen[n] == "set_trial_intermediate_value")
    for number in range(first, last + 1):
        copies.put_back(number)
        assert run(tmp_path / "study", pruner) == expected, (number, copies.seen[number])


@pytest.mark.full
@pytest.mark.parametrize("journal", [False, True])
def test_killed_at_any_write(pruner, tmp_path, journal):
    copies = Copies(tmp_path / "study")
    expected = run(tmp_path / "study", pruner, journal, copies)
    assert "PRUNED" in [trial[2] for trial in expected]
    for write in copies:
        assert run(tmp_path / "study", pruner, journal) == expected, write


def test_killed_with_a_journal(pruner, tmp_path):
    copies = Copies(tmp_path / "study")
    expected = run(tmp_path / "study", pruner, True, copies)
    copies.put_back(len(copies.seen) // 2)
    assert run(tmp_path / "study", pruner, True) == expected


def test_evaluations_that_a_lost_slot_has_not_reported_are_judged(pruner, tmp_path, local_slots):
    """The slot is lost after its run has committed an evaluation, at each start of a run."""
    expected = run(tmp_path / "study", pruner)
    (tmp_path / "lost").mkdir()
    search, tuner = started(tmp_path / "lost", pruner)
    wait, lost = local_slots.wait, []

    def losing():
        trial, report = wait()
        start = len(local_slots.started)
        if report.is_evaluation and len(lost) < 2 * TRIALS and start not in lost:
            lost.append(start)
            local_slots.release(trial, paused=True)
            return trial, SlotLost("The node died.", suspicious=False)
        return trial, report

    local_slots.wait = losing
    tuner.run(TRIALS, 1)
    assert values(search) == expected and lost
