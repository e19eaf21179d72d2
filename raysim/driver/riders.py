"""Riders of passes: what the engine adds to a pass before it runs, and takes out of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raysim.core.rules import Pass, Reduced
from raysim.core.steps import Steps

RunPass = Callable[[Pass], Steps[Reduced]]
"""Runs a pass."""


class Rider:
    """Rider of passes; each pass is dressed, run and undressed before the next one."""

    def dress(self, work: Pass) -> Pass:
        """Return the pass that runs in place of a pass."""
        return work

    def undress(self, reduced: Reduced) -> Reduced:
        """Return the result of the pass that was given, from that of the one that ran."""
        return reduced


def ridden(riders: Sequence[Rider], run: RunPass) -> RunPass:
    """Return what runs a pass with riders: dressed in their order, undressed in reverse."""

    def run_dressed(work: Pass) -> Steps[Reduced]:
        for rider in riders:
            work = rider.dress(work)
        reduced = yield from run(work)
        for rider in reversed(riders):
            reduced = rider.undress(reduced)
        return reduced

    return run_dressed
