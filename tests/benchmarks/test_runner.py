"""Systems that take turns: their answers, and that nothing is left of them."""

from __future__ import annotations

import os
import sys
from time import monotonic, sleep

import psutil
import pytest

from tests.benchmarks import runner
from tests.benchmarks.peers.work import Case
from tests.benchmarks.runner import Runner, SystemFailedError

pytestmark = pytest.mark.ci

SYSTEM = """
import subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleep, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
for number, _ in enumerate(sys.stdin):
    if {fails} and number:
        raise SystemExit("no more")
    print(child.pid, flush=True)
if {stays}:
    child.wait()
"""


def runner_of(folder, *, suspended=False, fails=False, stays=False):
    command = [sys.executable, "-c", SYSTEM.format(fails=fails, stays=stays)]
    case = Case("2nn", clients=1, samples=1, cohort=1)
    return Runner("system", command, case, folder, {}, suspended=suspended)


def comes_to(process, status):
    """Wait until a signal has worked; the number of an ended process may stay taken."""
    end = monotonic() + 10
    while monotonic() < end:
        try:
            if process.status() == status:
                return True
        except psutil.NoSuchProcess:
            return status == psutil.STATUS_ZOMBIE
        sleep(0.01)
    return False


@pytest.mark.parametrize("suspended", [False, True])
@pytest.mark.parametrize("stays", [False, True])
def test_nothing_is_left_of_a_system(tmp_path, monkeypatch, suspended, stays):
    monkeypatch.setattr(runner, "CLOSING_SECONDS", 1)
    monkeypatch.setattr(runner, "ENDING_SECONDS", 0.1)
    system = runner_of(tmp_path, suspended=suspended, stays=stays)
    child = psutil.Process(int(system.round()))
    assert comes_to(child, psutil.STATUS_STOPPED if suspended else psutil.STATUS_SLEEPING)
    assert int(system.round()) == child.pid
    system.close()
    assert comes_to(child, psutil.STATUS_ZOMBIE)


def test_a_system_that_fails_is_told_of_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "ENDING_SECONDS", 0.1)
    system = runner_of(tmp_path, fails=True)
    child = psutil.Process(int(system.round()))
    with pytest.raises(SystemFailedError, match=r"ended before its round was over:\nno more"):
        system.round()
    system.close()
    assert comes_to(child, psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(("python", "ours"), [(sys.executable, True), ("/elsewhere/python", False)])
def test_packages_beside_this_python_are_shown_to_it_alone(monkeypatch, python, ours):
    monkeypatch.setenv("PYTHONPATH", "/packages")
    shown = runner.process_environment(python)["PYTHONPATH"].split(os.pathsep)
    assert shown == [str(runner.ROOT), *(["/packages"] if ours else [])]
