"""Trials that a slot trains as one stack end as those of a study without stacks."""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState

import raysim
from raysim.core.errors import RunError, SettingsError
from raysim.tuning.slots.report import SlotLost
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.tuner import Tuner
from tests.tuning.common import RecordingListener, make_search, make_study

LR = {"local.lr": {"low": 0.01, "high": 0.2, "log": True}}


class TunerEndedError(Exception):
    pass


class Interrupting(RecordingListener):
    """Ends the tuner with its second trial, while others may be under way."""

    def trial_done(self, trial, seconds):
        super().trial_done(trial, seconds)
        if len(self.ended) == 2:
            raise TunerEndedError


@pytest.fixture
def tuned(tmp_path, local_slots):
    """Run a study in a folder of its own; return its trials and its tuner."""

    def run(stack, trials=5, name=None, space=LR, listener=RecordingListener, jobs=1, **options):
        folder = tmp_path / (name or str(stack))
        folder.mkdir(exist_ok=True)
        options = SearchOptions(stack=stack, **{"sampler": "random"} | options)
        search = make_search(folder, options, table={"space": space})
        tuner = Tuner(search, folder / "out", listener())
        try:
            tuner.run(trials, jobs)
            return search.study.get_trials(), tuner
        finally:
            search.close()

    return run


def facts(tuner, number):
    found = json.loads((tuner.folder.trial(number) / "environment.json").read_text())
    return found.get("stack"), found.get("stacked_with")


def losses(tuner, number):
    table = pq.read_table(tuner.folder.trial(number) / "metrics.parquet")
    return table["train_loss"].to_pylist()


def assert_alike(found, tuner, expected, other):
    """Check that a study ended as another one, up to rounding."""
    assert [(t.params, t.state) for t in found] == [(t.params, t.state) for t in expected]
    for trial, same in zip(found, expected, strict=True):
        assert losses(tuner, trial.number) == pytest.approx(losses(other, trial.number), rel=1e-4)
        assert trial.values == pytest.approx(same.values, abs=0.02)  # of 40 samples held out, one


def test_a_stack_takes_new_trials_as_others_end(tuned):
    expected = tuned(1)
    found, tuner = tuned(2)
    assert_alike(found, tuner, *expected)
    assert [facts(tuner, number) for number in range(5)] == [(2, 2)] * 4 + [(2, 1)]
    assert facts(expected[1], 0) == (None, None)
    assert tuner.listener.notes == []


def test_a_pruned_trial_leaves_the_others(tuned):
    halving = {"min_resource": 1, "reduction_factor": 2, "min_early_stopping_rate": 0}
    pruner = {"pruner": "successive-halving", "pruner_options": halving}
    found, tuner = tuned(3, 6, **pruner)
    assert {trial.state for trial in found} == {TrialState.PRUNED, TrialState.COMPLETE}
    settings = tuner.search.resolved.settings
    for trial in found:
        ended = len(losses(tuner, trial.number))
        assert (ended == 4) == (trial.state is TrialState.COMPLETE)
        assert [*trial.intermediate_values] == [*range(1, ended + 1)]
        out = {"out": str(tuner.folder.path / f"{trial.number}"), "engine.backend": "inline"}
        alone = raysim.run(settings.override(trial.params | out)).metrics["train_loss"].to_pylist()
        assert losses(tuner, trial.number) == pytest.approx(alone[:ended], rel=1e-4)
        assert facts(tuner, trial.number)[1] > 1


def test_trials_that_cannot_share_a_stack_are_said_once(tuned):
    space = LR | {"local.batch_size": [5, 10]}
    _, tuner = tuned(3, 6, space=space)
    (note,) = tuner.listener.notes
    assert note in {
        f"trials of one slot are not stacked where local.batch_size differs ({pair})"
        for pair in ("5, 10", "10, 5")
    }


def test_a_lost_slot_and_an_interrupted_tuner(tuned, local_slots):
    expected = tuned(1, 4)
    faults = iter([SlotLost("gone", suspicious=True)])
    local_slots.fault = lambda run: next(faults, None) if run == 1 else None
    with pytest.raises(TunerEndedError):
        tuned(2, 4, listener=Interrupting)
    local_slots.started.clear()
    found, tuner = tuned(2, 4)
    assert set(local_slots.started) == {2, 3}  # they were resumed
    assert_alike(found, tuner, *expected)


def test_a_trial_that_ends_its_process_fails_alone(tuned, local_slots):
    expected, other = tuned(3, 5)
    lost = SlotLost("The actor died.", suspicious=True)
    local_slots.fault = lambda run: lost if run == 1 else None
    local_slots.started.clear()
    found, tuner = tuned(3, 5, name="lost")
    assert [trial.state.name for trial in found] == ["COMPLETE", "FAIL"] + ["COMPLETE"] * 3
    assert found[1].user_attrs["failed"] == "lost its slot 3 times: The actor died."
    assert local_slots.started == [0, 1, 2] * 3 + [3, 4]
    again = [f"trial {n}: its slot was lost; resuming from its checkpoint" for n in range(3)]
    assert tuner.listener.notes == again + [f"{note}, alone" for note in again]
    for trial, same in zip(found, expected, strict=True):
        if trial.number != 1:  # the same bits, alone and in a stack
            assert trial.values == same.values
            assert losses(tuner, trial.number) == losses(other, trial.number)


def test_trials_are_in_turns_with_one_job_alone(tuned):
    """Where no number is given, a second slot may start at any time."""
    assert tuned(2, 2)[1]._turns.ordered
    assert not tuned(2, 2, name="as many as fit", jobs=None)[1]._turns.ordered


def test_a_finished_run_with_another_parameter_fails_its_trial_whose_turn_has_not_come(tuned):
    _, tuner = tuned(2, 2)
    search, folder = tuner.search, tuner.folder.trial(0)
    search.study.enqueue_trial({"local.lr": 0.15})
    trial = search.ask()
    shutil.copytree(folder, tuner.folder.trial(trial.number))
    tuner._resume(trial)
    assert tuner._waiting == []
    failed = search.study.get_trials()[trial.number].user_attrs["failed"]
    assert failed.endswith("holds a run with another local.lr")


def test_the_study_records_its_stack(tuned):
    tuned(2, 1)
    with pytest.raises(RunError, match=r"differs in stack \(2, here 1\); choose another --name"):
        tuned(1, 2, name="2")


def test_a_trial_goes_on_alone_by_force_only(tuned, local_slots):
    _, tuner = tuned(2, 2)
    folder = tuner.folder.trial(0)
    (folder / "summary.json").unlink()
    for newer in sorted((folder / "checkpoints").iterdir())[1:]:
        shutil.rmtree(newer)
    with pytest.raises(RunError, match=r"number of stacked trials was 2 \(here 1\)"):
        raysim.resume(folder, overrides={"engine.backend": "inline"})
    again = raysim.resume(folder, overrides={"engine.backend": "inline"}, force=True)
    assert "number of stacked trials was 2" in again.summary["forced"][0]


def test_trials_with_actors_of_their_own_are_not_stacked(tmp_path):
    with pytest.raises(SettingsError, match=r"stack=2: must be 1 with engine.actors=4, where"):
        make_search(tmp_path, SearchOptions(stack=2), **{"engine.actors": 4})


def test_trials_that_search_a_setting_of_engine_are_not_stacked(tmp_path):
    """Those of one slot share its engine."""
    table = {"space": LR | {"engine.vectorize": [0, 4]}}
    with pytest.raises(SettingsError, match=r"stack=2: must be 1 where `engine.vectorize` is sea"):
        make_search(tmp_path, SearchOptions(stack=2), table=table)
    make_search(tmp_path, SearchOptions(stack=1), table=table)
    make_search(tmp_path, SearchOptions(stack=2), table=table, **{"engine.vectorize": 4})


def test_the_seconds_of_stacked_trials_are_not_bounded(tmp_path):
    study = make_study(tmp_path, constraints={"seconds": 9.0}, stack=2)
    message = "stack=2: must be 1 with study.constraints.seconds, because the seconds of stacked"
    with pytest.raises(SettingsError, match=f"^study.{message}"):
        study.options()
    with pytest.raises(SettingsError, match=f"^{message}"):
        study.options(stack=2)
    assert study.options(stack=1).constraints == {"seconds": 9.0}
    assert make_study(tmp_path, constraints={"bytes": 9.0}, stack=2).options().stack == 2


def test_the_stack_of_a_study_file(tmp_path):
    assert make_study(tmp_path, stack=4).options().stack == 4
    assert make_study(tmp_path, stack=4).options(stack=8).stack == 8
    with pytest.raises(SettingsError, match=r"study.stack=0: must be greater than or equal to 1"):
        make_study(tmp_path, stack=0)
