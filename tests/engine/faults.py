"""A run in a process of its own that kills itself, for tests of crashes.

Usage: python -m tests.engine.faults OUT SIZES ROUND KEY=VALUE...
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import raysim
from raysim.config import parse_override
from tests.conftest import make_settings, make_task


class Kill(raysim.Listener):
    """Ends this process with SIGKILL as soon as a round is committed."""

    def __init__(self, number: int) -> None:
        self._number = number

    def round_done(self, row: Mapping[str, Any]) -> None:
        if row["round"] == self._number:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    out, sizes, number, *overrides = sys.argv[1:]
    task = make_task(tuple(int(size) for size in sizes.split(",")))
    settings = make_settings(Path(out), **dict(parse_override(text) for text in overrides))
    raysim.run(settings, task, Kill(int(number)))
