"""Virtual time of devices and networks.

    seconds = FLOPs / speed + bytes / bandwidth + latency
    joules  = watts * FLOPs / speed + joules per byte * bytes

of a client in a pass. Profiles are drawn from the seed, client by client, from the log-normal
distributions of `kind`, or read from `table`. Their sources are printed in
`raysim/clock/profiles.py`: those of phones are FLASH's measurements (Yang et al., WWW 2021);
`cross-silo` and `iot` are round numbers of ours.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from raysim.clock.availability import (
    TICKS_PER_SECOND,
    Always,
    Availability,
    Renewal,
    read_windows,
)
from raysim.clock.base import Clock
from raysim.clock.fleet import Fleet
from raysim.clock.profiles import ProfileSource, read_columns
from raysim.core.given import user_path


def _absolute(setting: str, path: str) -> str:
    return str(user_path(path, setting).absolute())


class Devices(Clock):
    """Clients are devices: their work takes virtual time and energy, and they may be away.

    Costs a count of the FLOPs of each kind of step, once, and microseconds a client and round.
    """

    kind: Literal["phones", "cross-silo", "iot"] = Field(
        default="phones", description="kind of devices of which profiles are drawn"
    )
    spread: float = Field(
        default=1.0, ge=0, le=10, description="factor of all sigmas; 0: all devices are equal"
    )
    table: Annotated[str, AfterValidator(partial(_absolute, "clock.table"))] | None = Field(
        default=None,
        description="CSV or Parquet: client, and any of speed, down, up, latency, watts,"
        " joules_per_byte, dropout; columns that it lacks are drawn",
    )
    on_hours: float | None = Field(
        default=None, ge=0.01, le=1e6, description="mean hours that a client is on; none: always"
    )
    off_hours: float = Field(
        default=8.0, ge=0.01, le=1e6, description="mean hours that a client is off between"
    )
    windows: Annotated[str, AfterValidator(partial(_absolute, "clock.windows"))] | None = Field(
        default=None,
        description="CSV or Parquet: client, start, end of its daily windows in seconds of the day",
    )
    dropout: float = Field(
        default=0.0, ge=0, le=1, description="probability that a client drops out of a round"
    )

    @model_validator(mode="after")
    def _one_availability(self) -> Self:
        if self.windows is not None and self.on_hours is not None:
            raise ValueError(f"on_hours={self.on_hours:g}: must be none with clock.windows")
        return self

    def fleet(self, clients: int, seed: int) -> Fleet:
        """Return the devices of K clients.

        Raises:
            DataError: a table cannot be read, or lacks a client.
        """
        columns = {} if self.table is None else read_columns(Path(self.table), clients)
        source = ProfileSource(seed, self.kind, self.spread, columns)
        return Fleet(source, self._availability(clients, seed), self.dropout)

    def _availability(self, clients: int, seed: int) -> Availability:
        if self.windows is not None:
            return read_windows(Path(self.windows), clients)
        if self.on_hours is None:
            return Always()
        hour = 3600 * TICKS_PER_SECOND
        return Renewal(seed, self.on_hours * hour, self.off_hours * hour)
