"""Turns of stacked trials: who starts, and when."""

from __future__ import annotations

from types import SimpleNamespace

from optuna.trial import TrialState

from raysim.tuning.search.turns import TrialRun, Turns
from raysim.tuning.slots.report import Report


class Trial:
    """A trial's attributes and state."""

    def __init__(self, state=TrialState.RUNNING, **attributes):
        self.user_attrs, self.state = attributes, state
        self.number, self.intermediate_values = 0, {1: 0.5}
        self.study = SimpleNamespace(get_trials=lambda deepcopy: [self])

    def set_user_attr(self, key, value):
        self.user_attrs = self.user_attrs | {key: value}


def run(**attributes):
    return TrialRun(Trial(**attributes), 0)


def test_a_turn_is_over_when_all_have_reported():
    turns, runs = Turns(True), [run(), run()]
    for place, each in enumerate(runs):
        turns.started(each, place)
    assert turns.is_over
    turns.reported(runs[0])
    assert not turns.is_over
    turns.reported(runs[1])
    assert turns.is_over
    turns.ended(runs[0])  # in the next turn, which the other has not had
    assert not turns.is_over and turns.first([run()]) is None
    turns.reported(runs[1])
    turns.started(new := run(), 0)
    assert turns.is_over and new.trial.user_attrs == {"begun": [0, 2]}
    assert runs[1].trial.user_attrs == {"begun": [1, 0], "reports": 2}


def test_trials_that_have_had_the_turn_wait_for_those_that_have_not():
    turns = Turns(True)
    ahead, behind, new = run(begun=[0, 3], reports=4), run(begun=[1, 5], reports=1), run()
    turns.resume([each.trial for each in (ahead, behind, new)])
    assert turns.first([ahead, behind, new]) is behind
    turns.started(behind, 1)
    assert turns.first([ahead, new]) is turns.first([new]) is None and not turns.is_over
    turns.reported(behind)
    assert turns.first([new, ahead]) is ahead
    turns.started(ahead, 0)
    assert turns.is_over and turns.first([new]) is new
    assert ahead.trial.user_attrs == {"begun": [0, 3], "reports": 4}


def test_a_tuner_goes_on_in_the_turn_in_which_the_last_one_ended():
    """It was killed after the first place had ended in turn 6, before the other had that turn."""
    turns, behind, new = Turns(True), run(begun=[1, 5], reports=1), run()
    ended = Trial(TrialState.PRUNED, begun=[0, 3], reports=3)
    turns.resume([ended, behind.trial, new.trial])
    turns.started(behind, 1)
    assert not turns.is_over and turns.first([new]) is None
    turns.reported(behind)
    assert turns.first([new]) is new
    turns.started(new, 0)
    assert new.trial.user_attrs == {"begun": [0, 7]}


def test_trials_of_other_slots_and_tuners_go_on_at_once():
    """Neither waits for the other, nor does a new one for them."""
    turns, late, early = Turns(True), run(begun=[0, 3], reports=4), run(begun=[1, 1], reports=1)
    turns.resume([late.trial, early.trial])
    for each in (late, early):
        assert turns.first([each]) is each
        turns.started(each, 0)
    assert turns.is_over
    other = run(begun=[2, 30], reports=9)  # taken over meanwhile
    assert turns.first([other]) is other
    turns.started(other, 2)
    assert turns.is_over
    began = [each.trial.user_attrs["begun"] for each in (late, early, other)]
    assert began == [[0, 3], [0, 6], [2, -2]]


def test_trials_whose_slot_was_lost_go_on_in_the_present_turn():
    """One went on alone for a while; of the others none is behind."""
    turns, runs = Turns(True), [run(), run(), run()]
    for place, each in enumerate(runs):
        turns.started(each, place)
    for _ in range(3):
        turns.reported(runs[0])
    turns.ended(runs[0])
    for each in runs[1:]:
        turns.started(each, 0)
    assert turns.is_over
    turns.reported(runs[1])
    assert not turns.is_over
    assert runs[1].trial.user_attrs == {"begun": [0, 4], "reports": 1}


def test_a_run_goes_on_behind_the_reports_that_were_acted_on():
    turns, ended = Turns(True), [Report({1: 0.1, 2: 0.2}, summary={})]
    trial = Trial(begun=[2, 0], reports=4)
    assert turns.resumes_at(trial, []) == (4, 2)
    assert turns.resumes_at(trial, ended) == (1, 2)  # of the second seed
    assert turns.resumes_at(Trial(), []) == (0, None)
    assert not turns.awaits_end(trial, ended)
    assert turns.awaits_end(Trial(reports=2), ended)
    assert turns.is_undecided(Trial()) and not turns.is_undecided(Trial(reports=1))


def test_without_stacks_there_are_no_turns():
    turns, runs = Turns(False), [run(), run()]
    for each in runs:
        turns.started(each, 0)
        turns.reported(each)
    turns.reported(runs[0])
    assert turns.is_over and turns.first(runs) is runs[0]
    assert runs[0].trial.user_attrs == {} and turns.is_undecided(Trial(reports=1))
    assert not turns.awaits_end(Trial(), [Report({1: 0.1}, summary={})])
