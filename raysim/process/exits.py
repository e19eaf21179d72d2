"""Exit codes of a command, and the signals that end it.

A command that has nothing to lose, such as one that is still importing, ends at once. Within
`interruptible` a signal is raised as `Interrupted`, and `delay_signals` delays it past a step that
must not be cut, such as the start of Ray or a commit. A killed process reports it by `last_words`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

INPUT = 2
"""Exit code of a wrong setting, file or argument; usage errors have it, too."""
FAULT = 75
"""Exit code of a failed disk, node or cluster; EX_TEMPFAIL of sysexits.h: try again."""
SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM),
    *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else ()),  # not on Windows
)
REPEAT_SECONDS = 1.0
"""Signals within these seconds count as one; timeout(1) sends a signal to child and group."""


_WATCHER = (
    *(sys.executable, "-I", "-S", "-c"),
    "import sys; sys.exit(sys.stdin.read().split('\\n')[-2] or None)",
)
"""Command of a process that writes the last line of its input to stderr."""


class Interrupted(KeyboardInterrupt):
    """Interruption by a signal; a run has checkpointed its committed rounds.

    Attributes:
        exit_code: 128 + the signal's number, as a shell reports it.
    """

    def __init__(self, number: int, message: str = "") -> None:
        name = signal.Signals(number).name
        super().__init__(message or name)
        self.exit_code = 128 + number
        self._line = message or f"interrupted by {name}; the same call starts again"

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback."""
        return [self._line]


class _Signals:
    """Handler of the signals; Python calls it in the main thread only."""

    def __init__(self) -> None:
        self.depth, self.held = 0, 0
        self.raised: float | None = None
        self.number: int = signal.SIGINT
        self.pending: int | None = None

    def handle(self, number: int, _: object) -> None:
        """End the process, or raise, or leave the signal to the end of `delay_signals`."""
        if self.raised is not None and monotonic() - self.raised < REPEAT_SECONDS:
            return
        if self.held:
            self.pending = number
            return
        if self.depth == 0:
            os._exit(128 + number)
        self.raised, self.number = monotonic(), number
        raise Interrupted(number)

    def catch(self) -> dict[int, Any]:
        """Take over the signals, except ignored ones, as under nohup, and a user's own."""
        free = (signal.SIG_DFL, signal.default_int_handler)
        taken: dict[int, Any] = {n: signal.getsignal(n) for n in SIGNALS}
        taken = {number: handler for number, handler in taken.items() if handler in free}
        for number in taken:
            signal.signal(number, self.handle)
        return taken


_signals = _Signals()


def end_at_once() -> None:
    """Let signals end this process silently while it is not `interruptible`."""
    _signals.catch()


def retake_signals() -> None:
    """Install our handlers again, after a library has put its own below Python's."""
    for number in SIGNALS:
        if signal.getsignal(number) == _signals.handle:
            signal.signal(number, _signals.handle)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `Interrupted` for signals; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _signals.depth == 0:
        _signals.raised, _signals.number = None, signal.SIGINT
    _signals.depth += 1
    before = _signals.catch()
    try:
        yield
    finally:
        _signals.depth -= 1
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hinting_at(hint: str) -> Iterator[None]:
    """Raise signals, and other interruptions, as `Interrupted` with a line on how to go on."""
    try:
        with interruptible():
            yield
    except KeyboardInterrupt as stop:
        raise with_hint(stop, hint) from None


def with_hint(error: KeyboardInterrupt, hint: str) -> Interrupted:
    """Return an interruption that says how to go on."""
    told = Interrupted(exit_code(error) - 128, hint)
    return told.with_traceback(error.__traceback__)


@contextmanager
def delay_signals() -> Iterator[None]:
    """Delay a signal to the end of the body."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _signals.held += 1
    try:
        yield
    finally:
        _signals.held -= 1
        pending = _signals.pending
        if pending is not None and not _signals.held:
            _signals.pending = None
            _signals.handle(pending, None)


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ends with an error or an interruption.

    Ray raises its own KeyboardInterrupt if a signal comes within one of its calls.
    """
    return int(getattr(error, "exit_code", 128 + _signals.number))


@contextmanager
def last_words(line: str) -> Iterator[Callable[[str], None]]:
    """Write a line to stderr if the process is killed in the body; yield a setter of it.

    A second process reads a pipe to its end: a SIGKILL ends this one without exit handlers, and so
    does Ray when the connection to its object store breaks.
    """
    watcher = None
    try:
        with delay_signals(), suppress(OSError):  # skipped on a machine at its limits
            watcher = subprocess.Popen(_WATCHER, stdin=subprocess.PIPE, start_new_session=True)
            _send(watcher, line)
        yield lambda changed: _send(watcher, changed)
    finally:
        with delay_signals():
            _send(watcher, "")
            if watcher is not None:
                watcher.communicate()


def _send(watcher: subprocess.Popen[bytes] | None, line: str) -> None:
    """Send the watcher its line; an empty one if the process ends by itself."""
    if watcher is not None and watcher.stdin is not None:
        with suppress(BrokenPipeError):
            watcher.stdin.write(f"{line}\n".encode())
            watcher.stdin.flush()
