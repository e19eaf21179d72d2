"""Rounds and runs whose steps a test takes itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import raysim
from raysim.core.steps import Steps
from raysim.execution.base import advance
from raysim.execution.ray_runtime import OpenExecutor


def run_round(passes: raysim.Passes, run: Callable[[raysim.Pass], raysim.Reduced]) -> Any:
    """Run a round by a function that runs its passes; return what it returns."""
    try:
        work = next(passes)
        while True:
            work = passes.send(run(work))
    except StopIteration as end:
        return end.value


def ended(steps: Steps[Any]) -> Any:
    """Take the steps of a run to their end; return what they return."""
    try:
        while True:
            advance(steps)
    except StopIteration as end:
        return end.value


def steps_on(open_executor: Callable[[Any], Any], steps: Steps[Any]) -> Steps[Any]:
    """Take the steps of a run on another executor.

    Args:
        open_executor: Returns it, given what it is to work on.
        steps: The steps.
    """
    answer = None
    with closing(steps):
        try:
            while True:
                found = steps.send(answer)
                is_opening = isinstance(found, OpenExecutor)
                answer = open_executor(found.spec) if is_opening else (yield found)
        except StopIteration as end:
            return end.value
