"""Interface of clocks, and the clock that measures nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from raysim.core.components import Component, Registry

if TYPE_CHECKING:  # `raysim.config` imports this without pyarrow and scipy
    from raysim.clock.fleet import Fleet


class Clock(Component):
    """A virtual clock; its fields are its settings."""

    has_time: ClassVar[bool] = False
    """Whether a run has virtual seconds and joules."""
    revision: ClassVar[int] = 1
    """Raised when the same settings give other bits; a run goes on in its own revision alone."""

    def fleet(self, clients: int, seed: int) -> Fleet | None:
        """Return the devices of K clients; None where there is no virtual time.

        Raises:
            DataError: a table cannot be read, or lacks a client.
        """
        return None

    def files(self) -> dict[str, Path]:
        """Return the files that it reads, by setting; they decide a run's bits."""
        return {}


CLOCKS: Registry[Clock] = Registry("clock", Clock)
