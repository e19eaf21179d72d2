"""Interface of clocks, and the clock that measures nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from raysim.api.components import Acting, Registry

if TYPE_CHECKING:  # `raysim.config` imports this without pyarrow and scipy
    from raysim.clock.fleet import Fleet


@dataclass(frozen=True)
class Policy:
    """Policy of the server: when it goes on, and which results count.

    Attributes:
        name: Its name; see `raysim.clock.devices`.
        deadline: Seconds of a pass, of `deadline` and `partial`.
        extra: Clients asked on top of m, of `over_selection`.
    """

    name: Literal["wait", "deadline", "partial", "over_selection"] = "wait"
    deadline: float | None = None
    extra: int = 0

    @property
    def waits(self) -> bool:
        """True if the server waits for all clients, absent ones included."""
        return self.name == "wait"


class Clock(Acting):
    """A virtual clock; its fields are its settings."""

    has_time: ClassVar[bool] = False
    """Whether a run has virtual seconds and joules."""

    @property
    def server_policy(self) -> Policy:
        """The policy of the server."""
        return Policy()

    @property
    def drops_out(self) -> bool:
        """True if clients may drop out of a round; the default is True for clocks with devices."""
        return type(self).fleet is not Clock.fleet

    def fleet(self, clients: int, seed: int) -> Fleet | None:
        """Return the devices of K clients; None where there is no virtual time.

        Raises:
            DataError: a table cannot be read, or lacks a client.
        """
        return None

    def files(self) -> dict[str, Path]:
        """Return the files that it reads, by setting; they decide a run's bits."""
        return {}


CLOCKS: Registry[Clock] = Registry("clock", Clock, default="none")
