"""Virtual time of devices and networks.

    seconds = FLOPs / speed + bytes / bandwidth + latency
    joules  = watts * FLOPs / speed + joules per byte * bytes

of a client in a pass. Profiles are drawn from the seed, client by client, from the log-normal
distributions of `kind`, or read from `table`. `raysim/clock/profiles.py` has their sources:
`phones` are FLASH's measurements (Yang et al., WWW 2021); `cross-silo` and `iot` are our round
numbers.

Policies of the server, for each pass of a round:

- `wait`: it waits for all; clients that are away begin when they are available. No bit of the
  result changes.
- `deadline`: results that come later than `deadline` seconds do not count (Bonawitz et al.,
  "Towards Federated Learning at Scale", MLSys 2019).
- `partial`: clients do as many of their epochs as end before the deadline, as the stragglers of
  FedProx (Li et al., MLSys 2020); clients without a whole epoch are late.
- `over_selection`: m + `extra` clients are asked, the first m results count (Bonawitz et al.).

With any policy but `wait`, the cohort is drawn from clients that are available when the round
begins; a client that has begun stays. If no client is available, time goes on until one is. If a
method draws a further cohort for a pass, as D&C does, clients that are away begin when they are
available. A client drops out with probability `dropout`, at a uniform fraction of its work. A round
without a result that counts takes its time and leaves the model as it is, except for stages of the
channel that act on empty rounds. Gantt charts and traces of virtual time show only clients with
results that count.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from raysim.clock.availability import (
    TICKS_PER_SECOND,
    Always,
    Availability,
    Renewal,
    read_windows,
)
from raysim.clock.base import Clock, Policy
from raysim.clock.fleet import Fleet
from raysim.clock.profiles import ProfileSource, read_columns
from raysim.user_input import user_path
from raysim.user_input.limits import MOST


def _absolute(setting: str, path: str) -> str:
    return str(user_path(path, setting).absolute())


class Devices(Clock):
    """Clients are devices: their work takes virtual time and energy, and they may be away.

    Costs a count of the FLOPs of each kind of step, once, and microseconds a client and round.
    """

    has_time: ClassVar[bool] = True

    kind: Literal["phones", "cross-silo", "iot"] = Field(
        default="phones", description="kind of devices, for drawn profiles"
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
        default=0.0, ge=0, lt=1, description="probability that a client drops out of a round"
    )

    policy: Literal["wait", "deadline", "partial", "over_selection"] = Field(
        default="wait", description="when the server goes on, and which results count"
    )
    deadline: float | None = Field(
        default=None, gt=0, le=1e9, description="seconds of a pass; of deadline and partial"
    )
    extra: int = Field(
        default=0, ge=0, le=MOST, description="clients asked on top of m; of over_selection"
    )

    @model_validator(mode="after")
    def _policy_has_its_settings(self) -> Self:
        if (self.deadline is not None) != (timed := self.policy in ("deadline", "partial")):
            deadline = "none" if self.deadline is None else f"{self.deadline:g}"
            allowed = "a number of seconds" if timed else "none"
            raise ValueError(
                f"deadline={deadline}: must be {allowed} with clock.policy={self.policy}"
            )
        if bool(self.extra) != (self.policy == "over_selection"):
            allowed = "0" if self.extra else "at least 1"
            raise ValueError(
                f"extra={self.extra}: must be {allowed} with clock.policy={self.policy}"
            )
        return self

    @model_validator(mode="after")
    def _one_availability(self) -> Self:
        if self.windows is not None and self.on_hours is not None:
            raise ValueError(f"on_hours={self.on_hours:g}: must be none with clock.windows")
        return self

    @property
    def server_policy(self) -> Policy:
        """The policy of the server."""
        return Policy(self.policy, self.deadline, self.extra)

    @property
    def drops_out(self) -> bool:
        """True with a probability, or a table, which may have one."""
        return bool(self.dropout or self.table)

    def fleet(self, clients: int, seed: int) -> Fleet:
        """Return the devices of K clients.

        Raises:
            DataError: a table cannot be read, or lacks a client.
        """
        columns = {} if self.table is None else read_columns(Path(self.table), clients)
        source = ProfileSource(seed, self.kind, self.spread, columns)
        return Fleet(source, self._availability(clients, seed), self.dropout)

    def files(self) -> dict[str, Path]:
        """Return the tables, by setting."""
        paths = {"clock.table": self.table, "clock.windows": self.windows}
        return {setting: Path(path) for setting, path in paths.items() if path is not None}

    def _availability(self, clients: int, seed: int) -> Availability:
        if self.windows is not None:
            return read_windows(Path(self.windows), clients)
        if self.on_hours is None:
            return Always()
        hour = 3600 * TICKS_PER_SECOND
        return Renewal(seed, self.on_hours * hour, self.off_hours * hour)
