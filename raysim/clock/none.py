"""The clock of a run without virtual time."""

from __future__ import annotations

from raysim.clock.base import Clock


class NoClock(Clock):
    """No virtual time: rounds have neither virtual seconds nor joules. Costs nothing."""
