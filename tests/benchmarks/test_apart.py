"""Jobs of the GPU benchmark in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from time import sleep

import psutil
import pytest

from tests.benchmarks.gpu.apart import Job, run_apart

pytestmark = pytest.mark.ci

ROWS = [{"figure": 0}, {"figure": 1}]


def run(function, folder, limit=60.0, show=lambda outcome: None):
    job, log = Job("job", "part", function, limit), folder / "log.txt"
    return run_apart(job, limit, "cpu", log, show)


def works(seen, emit):
    print("told")
    emit([{"figure": 0}])
    while not seen.exists():
        sleep(0.05)
    emit([{"figure": 0}, {"figure": 1}])


def fails(emit):
    emit([{"figure": 0}])
    emit([{"figure": 0}, {"figure": 1}])
    raise ValueError("no such\nthing")


def crashes(emit):
    emit([{"figure": 0}])
    emit([{"figure": 0}, {"figure": 1}])
    os._exit(3)


def stays(emit):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    emit([{"child": child.pid}])
    sleep(600)


def test_rows_of_a_job_and_what_it_printed(tmp_path):
    shown, seen = [], tmp_path / "seen"

    def show(outcome):
        shown.append(outcome)
        seen.touch()

    outcome = run(partial(works, seen), tmp_path, show=show)
    assert shown[0].state == "under way" and shown[0].rows == ROWS[:1]
    assert (outcome.state, outcome.rows, outcome.device) == ("done", ROWS, "cpu")
    assert (tmp_path / "log.txt").read_text() == "told\n"


def test_a_job_that_fails_keeps_its_rows(tmp_path):
    outcome = run(fails, tmp_path)
    assert outcome.state == "failed: ValueError: no such thing"
    assert outcome.rows == ROWS
    assert "no such\nthing" in (tmp_path / "log.txt").read_text()


def test_a_job_that_crashes_keeps_its_rows(tmp_path):
    outcome = run(crashes, tmp_path)
    assert outcome.state == "failed: its process ended with code 3"
    assert outcome.rows == ROWS


def test_nothing_is_left_of_a_job_that_takes_too_long(tmp_path):
    outcome = run(stays, tmp_path, limit=5.0)
    assert outcome.state == "ended after 5 s"
    (row,) = outcome.rows
    assert any(is_gone(row["child"]) or sleep(0.1) for _ in range(100))  # a kill takes a moment


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
