"""Signals in this process: raised, delayed, repeated, ignored; and the table of exit codes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from raysim.errors import MachineError, RaysimError, RunError, SettingsError
from raysim.process import exits
from raysim.process.exits import Interrupted, delay_signals, exit_code, interruptible

PAGE = Path(__file__).parents[2] / "docs/scripts.md"


@pytest.fixture(autouse=True)
def handlers_of_a_new_process():
    """Ray, started by a test before in this process, leaves a handler of its own."""
    fresh = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {signum: signal.signal(signum, handler) for signum, handler in fresh.items()}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_is_raised_and_the_handler_given_back(number, code):
    signum = signal.Signals[number]
    before = signal.getsignal(signum)
    with pytest.raises(KeyboardInterrupt, match=number) as caught, interruptible(), interruptible():
        signal.raise_signal(signum)
    assert exit_code(caught.value) == code
    assert signal.getsignal(signum) == before


def test_a_library_that_raises_its_own_interruption_keeps_the_exit_code():
    """Ray does where a signal comes within one of its calls."""
    for signum, code in ((signal.SIGTERM, 143), (None, 130)):
        with pytest.raises(KeyboardInterrupt) as caught, interruptible():
            with suppress(Interrupted):
                if signum:
                    signal.raise_signal(signum)
            raise KeyboardInterrupt
        assert exit_code(caught.value) == code


def test_a_signal_waits_for_the_end_of_a_step():
    done = []
    with pytest.raises(Interrupted), interruptible(), delay_signals():
        with delay_signals():
            signal.raise_signal(signal.SIGTERM)
        done.append("step")
    assert done == ["step"]


def test_a_signal_that_repeats_is_the_same_one_and_a_later_one_is_not(monkeypatch):
    now = [10.0]
    monkeypatch.setattr(exits, "monotonic", lambda: now[0])
    done = []
    with pytest.raises(Interrupted, match="SIGINT"), interruptible():
        try:
            signal.raise_signal(signal.SIGTERM)
        except Interrupted:
            signal.raise_signal(signal.SIGTERM)
            done.append("the first is being handled")
            now[0] += exits.REPEAT_SECONDS
            signal.raise_signal(signal.SIGINT)
    assert done


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda *_: None])
def test_ignored_signals_and_a_users_own_handlers_stay(own):
    before = signal.signal(signal.SIGHUP, own)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == own
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_step_that_must_not_be_cut_is_finished_before_a_command_ends_at_once():
    program = """if True:
        import signal
        from raysim.process.exits import delay_signals, end_at_once
        end_at_once()
        with delay_signals():
            signal.raise_signal(signal.SIGTERM)
            print("step", flush=True)
        print("more")
    """
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (143, "step\n")


ENDING = """
import os, signal, sys
from raysim.process.exits import Interrupted, interruptible, last_words

try:
    with interruptible(), last_words("type it again") as say:
        exec(sys.argv[1])
except (ValueError, Interrupted):
    pass
os._exit(7)
"""


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("os._exit(1)", 1, "type it again\n"),
        ("say('type another'); os._exit(1)", 1, "type another\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "type it again\n"),
        ("import time; time.sleep(0.5); os.kill(0, signal.SIGINT)", 7, ""),
        ("raise ValueError", 7, ""),
        ("pass", 7, ""),
    ],
)
def test_a_process_that_ends_at_once_leaves_a_line(how, code, said):
    """Its own end is no such end, nor is a signal to its whole group."""
    command = [sys.executable, "-c", ENDING, how]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, start_new_session=True
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_the_page_has_every_exit_code():
    errors = (SettingsError, RunError, MachineError)
    codes = {0, 1, *(exit_code(error("")) for error in errors), exit_code(KeyboardInterrupt())}
    codes |= {exit_code(Interrupted(number)) for number in exits.SIGNALS}
    table = PAGE.read_text(encoding="utf-8").split("| exit code |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE)
    assert {int(code) for cell in cells for code in cell.split(",")} == codes
    assert issubclass(MachineError, RaysimError) and exit_code(MachineError("")) == exits.FAULT
