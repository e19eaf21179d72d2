"""Work in a child process that was forked with all imports done: a start costs milliseconds."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Any

import raysim.driver.start.start
import raysim.methods
import raysim.tuning.command
import raysim.workloads  # noqa: F401 - all that a command imports late, once for all children
from raysim.cli import app, live_view  # noqa: F401

SECONDS = 120.0
"""Longest time that a child may take."""


@dataclass(frozen=True)
class Ended:
    """End of a child process.

    Attributes:
        code: Exit code; negative, the signal that ended it.
        said: What it has written to standard output.
        errors: What it has written to standard error.
    """

    code: int
    said: str
    errors: str


class Child:
    """A running child process; standard output and error go to files."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._files: list[IO[str]] = [TemporaryFile("w+"), TemporaryFile("w+")]  # noqa: SIM115
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _work(work, self._files)

    def wait(self, seconds: float = SECONDS) -> Ended:
        """Wait for its end; after some seconds, end it with SIGKILL."""
        deadline, found = time.monotonic() + seconds, 0
        while not found:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if not found:
                time.sleep(0.002)
                if time.monotonic() > deadline:
                    os.kill(self.pid, signal.SIGKILL)
                    deadline = float("inf")
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        return Ended(os.waitstatus_to_exitcode(status), *texts)


def _work(work: Callable[[], Any], files: list[IO[str]]) -> None:
    """Do the work of a child, and end it; one that hangs writes where, before it is ended."""
    code: Any = 1
    try:
        for number, file in enumerate(files, 1):
            os.dup2(file.fileno(), number)
        faulthandler.dump_traceback_later(SECONDS - 5, file=2)
        os.setpgid(0, 0)  # Ctrl-C at the terminal is the parent's
        work()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def raysim_command(*words: str) -> Ended:
    """Run a command of the command line in a child process."""

    def work() -> None:
        sys.argv = ["raysim", *words]
        app.main()

    return Child(work).wait()
