"""Trials of several seeds: their runs, the values by which they are judged, and interruptions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import raysim
from raysim.tuning.search.results import combined
from raysim.tuning.slots.report import Report
from raysim.tuning.studies.samplers import SearchOptions
from tests.tuning.common import LocalSlots, make_search, make_study, make_tuner, values

QUICK = {"rounds": 2, "seed": 5}


def options(over_seeds="mean", pruner="none", seeds=3):
    return SearchOptions("random", pruner, seeds=seeds, over_seeds=over_seeds)


@pytest.fixture
def slots(monkeypatch):
    """One slot in this process; a run is known by the names of its trial and of its seed."""
    slots = LocalSlots(lambda out: (out.parent.name, out.name))
    monkeypatch.setattr("raysim.tuning.tuner.open_slots", slots.open)
    return slots


def runs_of(number):
    return [(f"{number:04d}", f"seed-{index}") for index in range(3)]


def read(folder: Path, number: int, name: str) -> list[dict]:
    trial = folder / "out/trials" / f"{number:04d}"
    return [json.loads((trial / f"seed-{i}" / name).read_text()) for i in range(3)]


@pytest.mark.parametrize("over_seeds", ["mean", "lower"])
def test_a_trial_is_judged_by_its_seeds(tmp_path, slots, over_seeds):
    search = make_search(tmp_path, options(over_seeds), **QUICK)
    make_tuner(search, tmp_path).run(2, 1)
    assert slots.started == runs_of(0) + runs_of(1)
    for trial in search.study.get_trials():
        configs = read(tmp_path, trial.number, "config.json")
        assert [config["seed"] for config in configs] == [5, 6, 7]
        assert {config["local"]["lr"] for config in configs} == {trial.params["local.lr"]}
        found = read(tmp_path, trial.number, "summary.json")
        accuracy = [summary["final_holdout_accuracy"] for summary in found]
        error = np.std(accuracy, ddof=1) / np.sqrt(3) if over_seeds == "lower" else 0
        assert error > 0 or over_seeds == "mean"
        assert trial.value == pytest.approx(np.mean(accuracy) - error, abs=1e-12)
        tests = [summary["final_accuracy"] for summary in found]
        assert trial.user_attrs["summary"]["final_accuracy"] == pytest.approx(np.mean(tests))
        assert trial.intermediate_values[2] == accuracy[0]
    again = make_search(tmp_path, options(over_seeds), **QUICK)
    make_tuner(again, tmp_path).run(2, 1)  # compares the trials with their runs


def test_an_interrupted_trial_goes_on_with_the_seed_that_is_left(tmp_path, slots):
    (tmp_path / "straight").mkdir()
    straight = make_search(tmp_path / "straight", options(), **QUICK)
    make_tuner(straight, tmp_path / "straight").run(2, 1)
    full = Report(machine_error="No space left on device")
    for run in (runs_of(0)[1], runs_of(1)[0], runs_of(1)[2]):
        slots.fault = lambda each, run=run: full if each == run else None
        with pytest.raises(raysim.RaysimError, match="No space left"):
            make_tuner(make_search(tmp_path, options(), **QUICK), tmp_path).run(2, 1)
    slots.fault = lambda run: None
    slots.started.clear()
    search = make_search(tmp_path, options(), **QUICK)
    make_tuner(search, tmp_path).run(2, 1)
    assert slots.started == runs_of(1)[2:] and values(search) == values(straight)


def test_a_seed_that_fails_fails_the_trial(tmp_path, slots):
    slots.fault = lambda run: Report(error="boom") if run == runs_of(0)[1] else None
    search = make_search(tmp_path, options(), **QUICK)
    make_tuner(search, tmp_path).run(2, 1)
    assert [trial[2] for trial in values(search)] == ["FAIL", "COMPLETE"]
    assert slots.started == runs_of(0)[:2] + runs_of(1)


def test_the_pruner_judges_the_first_seed(tmp_path, slots, monkeypatch):
    search = make_search(tmp_path, options(pruner="median"), **QUICK)
    asked = []

    def prune(study, trial):
        asked.append((trial.number, len(slots.started)))
        return trial.number == 1

    monkeypatch.setattr(search.study.pruner, "prune", prune)
    make_tuner(search, tmp_path).run(2, 1)
    assert [trial[2] for trial in values(search)] == ["COMPLETE", "PRUNED"]
    assert asked == [(0, 1), (0, 1), (1, 4)]  # two evaluations of the first seed, then one
    assert slots.started == runs_of(0) + runs_of(1)[:1]


def test_a_study_of_other_seeds_is_refused(tmp_path, slots):
    make_tuner(make_search(tmp_path, options(), **QUICK), tmp_path).run(1, 1)
    for other in (options(seeds=1), options("lower"), options(seeds=2)):
        with pytest.raises(raysim.RunError, match="differs in seeds"):
            make_search(tmp_path, other, **QUICK).claim()


def test_refusals(tmp_path):
    with pytest.raises(raysim.SettingsError, match="over_seeds=best: must be one of mean, lower"):
        make_study(tmp_path, over_seeds="best").options()
    with pytest.raises(raysim.SettingsError, match="over_seeds=lower: must have seeds of 2 or m"):
        make_study(tmp_path, over_seeds="lower").options()
    assert make_study(tmp_path, over_seeds="lower").options(seeds=2).seeds == 2
    with pytest.raises(raysim.SettingsError, match=r"study.seeds=0: must be greater"):
        make_study(tmp_path, seeds=0).options()
    table = {"space": {"seed": {"low": 1, "high": 9}}}
    with pytest.raises(raysim.SettingsError, match="seeds=3: must be 1 where `seed` is searched"):
        make_search(tmp_path, options(), table=table)


def test_the_mean_of_virtual_time_where_the_runs_have_it():
    common = dict.fromkeys(("final_holdout_accuracy", "final_accuracy"), 0.5)
    common |= dict.fromkeys(("bytes_up", "bytes_down", "seconds"), 1.0)
    timed = [common | {"virtual_seconds": s, "virtual_joules": 2 * s} for s in (1.0, 4.0)]
    found = combined(timed, "mean")
    assert (found["virtual_seconds"], found["virtual_joules"]) == (2.5, 5.0)
    assert "virtual_seconds" not in combined([common, common], "mean")
