"""Riders of passes: what the engine adds to a pass before it runs, and takes out of its result."""

from __future__ import annotations

from typing import ClassVar

from raysim.core.rules import Pass, Reduced


class Rider:
    """Rider of passes; each pass is dressed, run and undressed before the next one."""

    needs_clients: ClassVar[bool] = True
    """Whether it rides on passes over clients alone, not on those of a round without any."""

    def dress(self, work: Pass) -> Pass:
        """Return the pass that runs in place of a pass."""
        return work

    def undress(self, reduced: Reduced) -> Reduced:
        """Return the result of the pass that was given, from that of the one that ran."""
        return reduced
