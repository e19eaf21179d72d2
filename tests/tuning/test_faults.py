"""A study outlives its slots and its tuner, and keeps its slots busy."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

import raysim
from raysim.tuning.search.search import Search
from tests.tuning.common import make_search, make_tuner, summaries, values
from tests.tuning.faults import RANDOM

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0
"""Seconds after which a test has waited long enough."""


def wait_until(true: Callable[[], Any], process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for something, while a process runs."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None
        time.sleep(0.05)


def kill_a_slot() -> None:
    """Kill the process of a slot of this process's Ray."""
    processes = psutil.Process().children(recursive=True)
    titles = {process: " ".join(process.cmdline()) for process in processes}
    next(each for each, title in titles.items() if title.startswith("ray::SlotActor")).kill()


def committed(folder: Path, number: int = 0) -> bool:
    """Return whether a trial has a checkpoint."""
    return any(folder.glob(f"out/trials/{number:04d}/checkpoints/*"))


def done(folder: Path) -> int:
    """Return the number of trials whose runs are finished."""
    return len(summaries(folder))


def start_tuner(
    folder: Path, trials: int, overrides: dict[str, Any], address: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a tuner on a cluster, or on that of this process; its notes are in `FOLDER/notes`."""
    words = [f"{key}={value}" for key, value in overrides.items()]
    command = [sys.executable, "-m", "tests.tuning.faults", str(folder), str(trials), *words]
    address = address or ray.get_runtime_context().gcs_address
    environment = os.environ | {"RAY_ADDRESS": address}
    with (folder / "notes").open("wb") as notes:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=notes)


def check(search: Search, folder: Path, trials: int) -> None:
    """Check that every trial is there once, is finished, and agrees with its run."""
    found = search.study.get_trials()
    assert [trial.number for trial in found] == list(range(trials))
    assert {trial.state.name for trial in found} == {"COMPLETE"}
    runs = summaries(folder)
    assert sorted(runs) == list(range(trials))
    assert [trial.value for trial in found] == [
        runs[number]["final_holdout_accuracy"] for number in range(trials)
    ]
    every, rounds = search.resolved.settings.evaluation.every, search.resolved.settings.rounds
    for trial in found:
        assert sorted(trial.intermediate_values) == list(range(every, rounds + 1, every))


@pytest.mark.full
def test_a_lost_slot_goes_on_from_its_checkpoint(tmp_path, shared_ray):
    """The one study of the ordinary suite whose slots are actors."""
    search = make_search(tmp_path, rounds=20)
    tuner = make_tuner(search, tmp_path)

    def kill_in_time() -> None:
        wait_until(lambda: committed(tmp_path))
        kill_a_slot()

    killer = threading.Thread(target=kill_in_time)
    killer.start()
    tuner.run(2, 1)
    killer.join()
    notes = [note for note in tuner.listener.notes if note.startswith("trial")]
    assert notes == ["trial 0: its slot was lost; resuming from its checkpoint"]
    check(search, tmp_path, 2)
    # The run is the one that it would have been.
    params = values(search)[0][1] | {"out": str(tmp_path / "straight"), "engine.backend": "inline"}
    straight = raysim.run(search.resolved.settings.override(params))
    rounds = straight.metrics.to_pylist()
    assert values(search)[0][4] == {row["round"]: row["holdout_accuracy"] for row in rounds}


@pytest.mark.full
def test_a_killed_tuner_goes_on(tmp_path, shared_ray):
    overrides = {"engine.gpus_per_actor": 1.0, "rounds": 20}
    process = start_tuner(tmp_path, 4, overrides)
    wait_until(lambda: committed(tmp_path), process)
    process.kill()
    assert process.wait() == -9
    search = make_search(tmp_path, RANDOM, **overrides)
    states = [trial[2] for trial in values(search)]
    assert "RUNNING" in states and len(states) <= 4
    make_tuner(search, tmp_path).run(4, None)
    check(search, tmp_path, 4)


@pytest.mark.full
def test_eight_slots_on_two_gpus_outlive_faults_and_are_busy(tmp_path, shared_ray):
    overrides = {
        "method.name": "tests.tuning.waiting:Waiting",
        "method.seconds": 0.5,
        "engine.gpus_per_actor": 0.25,
        "rounds": 12,
        "fraction": 0.05,
        "evaluation.every": 2,
    }
    process = start_tuner(tmp_path, 24, overrides)
    wait_until(lambda: done(tmp_path) >= 1, process)
    kill_a_slot()
    wait_until(lambda: "its slot was lost" in (tmp_path / "notes").read_text(), process)
    before = done(tmp_path)
    wait_until(lambda: done(tmp_path) >= before + 2, process)
    process.kill()
    assert process.wait() == -9
    search = make_search(tmp_path, RANDOM, **overrides)
    numbered = len(search.study.get_trials())
    assert numbered < 16  # more than the slots remain
    result = make_tuner(search, tmp_path).run(24, None)
    check(search, tmp_path, 24)
    print(f"busy: {result.busy:.1%} of the time of 8 slots, {24 - numbered} trials remaining")
    assert result.busy >= 0.9
