"""Failures of runs, read from `failed.json` and `errors.log` in their directories.

A table writes `failed.json` into the directory of a run that failed in its slots, whatever the
cause. A run logs the clients that failed, including dropped ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from raysim.storage.run_directory import RunDirectory
from raysim.user_input import parse_json

LOGGED = re.compile(r"^round (\d+), client (\d+(?: \(.*\))?)$", re.MULTILINE)
"""Line before the traceback of a client in `errors.log`."""
INFINITE_LOSS = "its loss is not finite"
"""Error of a finished run that has diverged."""
DIVERGED = re.compile(rf"its update is (not finite|out of range)|{INFINITE_LOSS}")
"""Causes of divergence, in errors of runs and in `errors.log`."""


class RecordedFailure(NamedTuple):
    """Content of `failed.json`.

    Attributes:
        error: The run's error, in one line.
        formula: Revisions of its components, and digests of the user's own modules; None where
            the file is damaged.
    """

    error: str
    formula: Mapping[str, Any] | None


class Failure(NamedTuple):
    """End of a run that failed, and its error in one line."""

    state: Literal["diverged", "failed"]
    error: str


def read_failure(path: Path) -> RecordedFailure | None:
    """Return the failure that a table recorded in a run directory, or None."""
    try:
        record = dict(parse_json(RunDirectory(path).failed.read_text(encoding="utf-8")))
        return RecordedFailure(str(record["error"]), dict(record["formula"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError):
        return RecordedFailure("its record is damaged", None)


def failure_of(directory: RunDirectory, committed: int) -> Failure | None:
    """Return the failure of an unfinished run; None if none is recorded.

    Args:
        directory: The run's directory.
        committed: Number of committed rounds: a client that failed in them was dropped.
    """
    if recorded := read_failure(directory.path):
        return Failure(_state_after(recorded.error), recorded.error)
    try:
        log = directory.errors.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    last = next(reversed([*LOGGED.finditer(log)]), None)
    if last is None or int(last[1]) <= committed:
        return None
    error = f"client {last[2]} in round {last[1]}; its traceback is in {directory.errors}"
    return Failure(_state_after(log[last.end() :]), error)


def is_divergence(error: str) -> bool:
    """Return whether a run that ended with an error has diverged."""
    return bool(DIVERGED.search(error))


def _state_after(error: str) -> Literal["diverged", "failed"]:
    return "diverged" if is_divergence(error) else "failed"
