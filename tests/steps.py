"""Rounds whose passes a test runs itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import raysim


def run_round(passes: raysim.Passes, run: Callable[[raysim.Pass], raysim.Reduced]) -> Any:
    """Run a round by a function that runs its passes; return what it returns."""
    try:
        work = next(passes)
        while True:
            work = passes.send(run(work))
    except StopIteration as end:
        return end.value
