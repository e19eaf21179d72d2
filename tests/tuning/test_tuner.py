"""Whole studies on Ray: figures, numbers, faults, results."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

import raysim
from tests.tuning.common import make_search, make_tuner, values
from tuning.search import Asked
from tuning.slots import make_slots

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def data_root(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path_factory.mktemp("data")))


def runs(folder: Path) -> dict[int, dict[str, float]]:
    """Return the summaries of a study's runs by trial number."""
    return {
        int(path.parent.name): json.loads(path.read_text())
        for path in (folder / "out" / "trials").glob("*/summary.json")
    }


def test_a_study(tmp_path, shared_ray):
    search = make_search(tmp_path)
    outcome = make_tuner(search, tmp_path).run(5, 2)
    trials = search.study.get_trials()
    summaries = runs(tmp_path)
    assert [t.number for t in trials] == [0, 1, 2, 3, 4] == sorted(summaries)
    for trial in trials:
        summary = summaries[trial.number]
        assert trial.value == summary["final_holdout_accuracy"]
        table = pq.read_table(tmp_path / "out" / "trials" / f"{trial.number:04d}/metrics.parquet")
        rows = {row["round"]: row["holdout_accuracy"] for row in table.to_pylist()}
        assert trial.intermediate_values == {number: rows[number] for number in (1, 2, 3, 4)}
    best = max(trials, key=lambda trial: trial.value)
    assert [trial.number for trial in outcome.best] == [best.number]
    # The file is a preset: it gives the same run again.
    path = outcome.presets[best.number]
    again = raysim.run(raysim.load_config(path, {"out": str(tmp_path / "again")}))
    assert again.summary["final_holdout_accuracy"] == best.value
    assert outcome.busy is not None and 0.5 < outcome.busy <= 1


def test_the_same_study_twice_gives_the_same_trials(tmp_path, shared_ray):
    found = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        search = make_search(tmp_path / name, Asked(pruner="median"))
        make_tuner(search, tmp_path / name).run(7, 1)
        found.append(values(search))
    settings = [[trial[1] for trial in trials] for trials in found]
    assert settings[0] == settings[1] and len({tuple(p.items()) for p in settings[0]}) == 7
    assert found[0] == found[1]


def test_pruned_trials_stop_and_free_their_slot(tmp_path, shared_ray):
    search = make_search(tmp_path, Asked(sampler="random", pruner="median"), rounds=6)
    make_tuner(search, tmp_path).run(12, 1)
    states = [trial[2] for trial in values(search)]
    assert len(states) == 12 and set(states) == {"COMPLETE", "PRUNED"}
    assert set(runs(tmp_path)) == {n for n, state in enumerate(states) if state == "COMPLETE"}


def test_a_trial_that_fails_does_not_end_the_study(tmp_path, shared_ray):
    # The largest learning rates diverge.
    overrides = {"method.mu": 0.0, "local.momentum": 0.99, "local.weight_decay": 1e3}
    search = make_search(tmp_path, Asked(sampler="grid"), **overrides)
    make_tuner(search, tmp_path).run(100, 2)
    states = [trial[2] for trial in values(search)]
    assert len(states) == 9  # all points of the grid
    assert {"COMPLETE", "FAIL"} == set(states)
    failed = search.study.get_trials()[states.index("FAIL")]
    assert "client" in failed.user_attrs["failed"]


def test_two_objectives(tmp_path, shared_ray):
    search = make_search(tmp_path, Asked(objectives=("accuracy", "bytes")))
    outcome = make_tuner(search, tmp_path).run(3, 1)
    assert all(len(trial.values) == 2 for trial in search.study.get_trials())
    assert set(outcome.presets) == {trial.number for trial in outcome.best}


def kill_a_slot(out: Path) -> None:
    """Kill the process of a trial as soon as it has a checkpoint."""
    while not list(out.glob("trials/*/checkpoints/*")):
        time.sleep(0.05)
    processes = psutil.Process().children(recursive=True)
    titles = {process: " ".join(process.cmdline()) for process in processes}
    next(each for each, title in titles.items() if title.startswith("ray::SlotActor")).kill()


def test_a_lost_slot_goes_on_from_its_checkpoint(tmp_path, shared_ray):
    search = make_search(tmp_path, rounds=40)
    tuner = make_tuner(search, tmp_path)
    killer = threading.Thread(target=kill_a_slot, args=(tmp_path / "out",))
    killer.start()
    tuner.run(2, 1)
    killer.join()
    (tmp_path / "straight").mkdir()
    assert [note.split(":")[0] for note in tuner.watcher.notes] == ["trial 0"]
    assert [trial.number for trial in search.study.get_trials()] == [0, 1]
    straight = make_search(tmp_path / "straight", rounds=40)
    make_tuner(straight, tmp_path / "straight").run(2, 1)
    assert values(straight) == values(search)


def test_a_killed_tuner_goes_on(tmp_path):
    command = [sys.executable, "-m", "tests.tuning.faults", str(tmp_path), "4", "2"]
    process = subprocess.Popen(command, cwd=ROOT)
    while not list(tmp_path.glob("out/trials/*/checkpoints/*")):
        time.sleep(0.05)
        assert process.poll() is None
    process.kill()
    process.wait()
    running = [trial[2] for trial in values(make_search(tmp_path))]
    assert "RUNNING" in running and len(running) <= 4
    subprocess.run(command, cwd=ROOT, check=True)
    trials = values(make_search(tmp_path))
    assert [(trial[0], trial[2]) for trial in trials] == [(n, "COMPLETE") for n in range(4)]
    assert sorted(runs(tmp_path)) == [0, 1, 2, 3]
    assert {n: s["final_holdout_accuracy"] for n, s in runs(tmp_path).items()} == {
        trial[0]: trial[3][0] for trial in trials
    }
    assert all(set(trial[4]) == {1, 2, 3, 4} for trial in trials)


def test_a_second_tuner_is_refused(tmp_path):
    search = make_search(tmp_path)
    tuner = make_tuner(search, tmp_path)
    with tuner._claimed(), pytest.raises(raysim.RunError, match="another tuner is at work there"):
        make_tuner(search, tmp_path).run(1, 1)


def test_trials_with_actors_of_their_own(tmp_path, shared_ray):
    overrides = {"engine.actors": 2, "engine.gpus_per_actor": 0.5}
    search = make_search(tmp_path, **overrides)
    make_tuner(search, tmp_path).run(2, 2)
    assert [trial[2] for trial in values(search)] == ["COMPLETE"] * 2
    path = tmp_path / "out" / "trials" / "0001" / "environment.json"
    environment = json.loads(path.read_text())
    assert environment["backend"] == "ray" and len(environment["actors"]) == 2
    assert all(actor["gpus"] for actor in environment["actors"])


def test_more_trials_at_a_time_than_fit(tmp_path, shared_ray):
    resolved = make_search(tmp_path, **{"engine.gpus_per_actor": 0.5}).resolved
    with pytest.raises(raysim.SettingsError, match=r"jobs=5: 5 trials of 1 actors do not fit"):
        make_slots(resolved.settings, 5)
