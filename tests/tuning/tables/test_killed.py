"""A killed table goes on: the same cells, and no finished run twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tasks import model_of
from tests.tuning.tables.common import cells, run_of, times

ROOT = Path(__file__).parents[3]
PATIENCE = 600.0
"""Seconds after which a test has waited long enough."""


def start(*words: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a Python program from the root of the sources."""
    command = [sys.executable, "-m", *words]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def wait_while(process: subprocess.Popen[bytes], true: Callable[[], Any]) -> None:
    """Wait while something is true and a process runs."""
    deadline = time.monotonic() + PATIENCE
    while true():
        assert process.poll() is None, process.communicate()[0].decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a running process."""
    process.kill()
    process.communicate()
    assert process.returncode == -9


def committed(out: Path) -> set[str]:
    """Return the runs that have a checkpoint."""
    return {run_of(path.parents[1]) for path in out.glob("runs/*/*/checkpoints/*")}


def models(out: Path) -> dict[str, bytes]:
    """Return the bytes of all models."""
    return {run_of(path.parent): model_of(path.parent) for path in out.rglob("model.safetensors")}


@pytest.mark.full
def test_a_killed_table_goes_on(table, slots, tmp_path):
    words = ("--only", "fedprox", "--rounds", "4", "--seeds", "1")
    out = tmp_path / "out"
    process = start("tests.tuning.tables.local", str(tmp_path), str(out), *words)
    long, short = "fedprox-iid-long/seed-0", "fedprox-iid-short/seed-0"
    wait_while(process, lambda: short not in committed(out))
    kill(process)
    before = times(out)
    assert long in before
    assert table(*words)[0] == 0
    assert slots.started == [run for run in (long, short) if run not in before]
    after = times(out)
    assert before.items() <= after.items() and {*after} == {long, short}
    assert table(*words, "--out", "straight")[0] == 0
    assert cells(tmp_path / "straight") == cells(out)
    assert models(tmp_path / "straight") == models(out)


BLOBS = {
    "dataset.name": "tests.blobs:Blobs",
    "model.name": "tests.blobs:Linear",
    "partition.name": "iid",
    "clients": 20,
    "fraction": 0.2,
    "checkpoint_every": 5,
}
SEARCH = ("--tune", "local.lr=0.01..0.5:log", "--tune-trials", "2")
KILLED = {
    "table": ("mifl-6a", "--only", "2nn", "--rounds", "30", "--seeds", "1"),
    "sweep": ("mnist-fedavg", "method.name=fedavg,scaffold", "seed=0..2", "rounds=40", *SEARCH),
}
"""Commands, each with its words; the table's two columns share their runs, by one partition."""


def ends(out: Path) -> dict[Path, int]:
    """Return when the runs and trials in a folder ended, in ns."""
    found = out.rglob("summary.json")
    return {path.parent.relative_to(out): path.stat().st_mtime_ns for path in found}


@pytest.mark.full
@pytest.mark.parametrize(("command", "count"), [("table", 12), ("sweep", 2 * 2 + 2 * 3)])
def test_what_is_killed_at_three_random_moments_has_the_cells_of_an_undisturbed_one(
    tmp_path, command, count
):
    """The command itself, with a Ray of its own each time."""
    words = [*KILLED[command], "--jobs", "2", *(f"{key}={value}" for key, value in BLOBS.items())]
    data = {"RAYSIM_DATA": str(tmp_path / "data")}

    def begin(out: Path) -> subprocess.Popen[bytes]:
        return start("raysim", command, words[0], "--out", str(out), *words[1:], **data)

    out, ended = tmp_path / "out", {}
    for _ in range(3):
        process, known = begin(out), len(ends(out))
        wait_while(process, lambda known=known: len(ends(out)) == known)
        time.sleep(random.uniform(0, 3))
        kill(process)
        ended |= ends(out)
    for each in (out, tmp_path / "straight"):
        process = begin(each)
        said = process.communicate(timeout=PATIENCE)[0].decode()
        assert process.returncode == 0, said
    after = ends(out)
    assert len(after) == count and ended.items() <= after.items() and len(ended) >= 3
    assert cells(out) == cells(tmp_path / "straight")
    of = [{run: model_of(each / run) for run in after} for each in (out, tmp_path / "straight")]
    assert of[0] == of[1]
