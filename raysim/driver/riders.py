"""Riders of passes: additions to a pass before it runs, taken out of its result."""

from __future__ import annotations

from typing import ClassVar

from raysim.core.rules import Pass, Reduced


class Rider:
    """Rider of passes; each pass is dressed, run and undressed before the next one."""

    needs_clients: ClassVar[bool] = True
    """Whether it rides on passes over clients alone, not on those of a round without any."""

    def dress(self, work: Pass) -> Pass:
        """Return the pass that runs in place of the given one."""
        return work

    def undress(self, reduced: Reduced) -> Reduced:
        """Return the given pass's result, from the result of the pass that ran."""
        return reduced
