"""Standard output that may be closed or full, as with `| head` or on a full disk."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from raysim.display.terminal import print_line
from raysim.errors import MachineError, without_given_passwords, without_passwords
from raysim.process.exits import exit_code, interruptible

if TYPE_CHECKING:
    from raysim.driver.listeners.listener import Listener


class _Stdout(io.FileIO):
    """Writer to file descriptor 1; writes nothing more after the first failure."""

    def __init__(self) -> None:
        super().__init__(1, "w", closefd=False)
        self._lost = False
        self.needed = True

    def write(self, data: Any) -> int:
        """Write to stdout; end the command if that fails and its output is needed.

        Raises:
            MachineError: stdout cannot be written.
            SystemExit: the reader has closed the pipe, having read enough.
        """
        if self._lost:
            return len(data)
        try:
            return super().write(data) or 0
        except OSError as error:
            self._lost = True
            if self.needed and isinstance(error, BrokenPipeError):
                raise SystemExit(0) from error
            if self.needed:
                raise MachineError(f"stdout: {error.strerror}") from error
            say(f"stdout: {error.strerror}; going on without it")
            return len(data)


class _Masking(io.TextIOWrapper):
    """Stderr without passwords, which messages of libraries may quote in a URL."""

    def write(self, text: str) -> int:
        """Write a text without the given passwords."""
        return super().write(without_given_passwords(text))


def open_streams() -> None:
    """Let stdout survive failures, mask passwords on stderr, and open closed streams as /dev/null.

    Otherwise the next opened file would take the number of a closed stdout, and its output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    stderr = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    sys.stderr = _Masking(stderr, "utf-8", "backslashreplace", line_buffering=True)
    before = sys.stdout or io.TextIOWrapper(io.BytesIO())
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Stdout()),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=os.isatty(1),
    )


@contextmanager
def resumable(console: Console, hint: Callable[[], str]) -> Iterator[None]:
    """Run a body that writes its results to files; if interrupted, print how to resume it."""
    from raysim.cli.live_view import PlainOutput
    from raysim.driver.listeners.listener import listening

    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Stdout):
        raw.needed = False
    try:
        with interruptible(), listening(PlainOutput(console, {})):
            yield
    except KeyboardInterrupt as stop:
        if said := hint():
            print_line(console, said)
        raise typer.Exit(exit_code(stop)) from None


def printing(console: Console) -> Listener:
    """Return a listener that prints its notes."""
    from raysim.driver.listeners.listener import Listener

    class Printing(Listener):
        """Prints notes."""

        def note(self, text: str) -> None:
            """Print a line."""
            print_line(console, text)

    return Printing()


def to_json(values: Any) -> str:
    """Return values as JSON; numbers that are not finite are null."""
    return json.dumps(_finite(values), indent=2, ensure_ascii=False, allow_nan=False, default=str)


def _finite(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {str(key): _finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def say(text: str) -> None:
    """Print one line to stderr, which may be closed, too."""
    with suppress(OSError):
        print(f"raysim: {without_passwords(text)}", file=sys.stderr, flush=True)
