"""Profiles of devices: speed, network and energy of each client, drawn or from a table.

Quantities are log-normal, independent of each other, with `median` and `sigma` (deviation of the
natural logarithm) from KINDS. Sources of `phones`, from the repository of FLASH (Yang et al.,
"Characterizing Impacts of Heterogeneity in Federated Learning upon Large-Scale Smartphone Data",
WWW 2021; github.com/PKU-Chengxu/FLASH, commit 55cbede):

- `speed`: `device_util.py` has the measured time of a training step of its FEMNIST network on three
  phones (1642, 588 and 179 ms for 10 samples, that is 1.02 GFLOP), and the number of clients in its
  measurements with each phone (18820, 16428 and 159). Median and sigma are taken over the
  logarithms of the resulting speeds, 0.62, 1.73 and 5.70 GFLOP/s, weighted by these numbers.
- `down`, `up`: `speed_distri.json` has the mean speed of 19 measured networks in KiB/s; median and
  sigma are the mean and the deviation of their logarithms.

All other numbers are our round numbers, not measured: latency and energy of `phones`, and all of
`cross-silo` (a server with a GPU, 1 Gbit/s) and `iot` (a small board on 2 Mbit/s).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raysim.clock.draws import normals
from raysim.errors import DataError
from raysim.numbers.arrays import Floats, Integers
from raysim.numbers.client_tables import read_table, rows_of


class LogNormal(NamedTuple):
    """Log-normal distribution; sigma is the deviation of the natural logarithm."""

    median: float
    sigma: float


class Profiles(NamedTuple):
    """Device properties of n clients.

    Attributes:
        speed: Training speed in FLOP/s [n].
        down: Bytes received per second [n].
        up: Bytes sent per second [n].
        latency: Seconds of a trip to the client and back, on top [n].
        watts: Power while training [n].
        joules_per_byte: Energy of a byte, sent or received [n].
    """

    speed: Floats
    down: Floats
    up: Floats
    latency: Floats
    watts: Floats
    joules_per_byte: Floats


KIB = 1024.0
KINDS: Mapping[str, Mapping[str, LogNormal]] = {
    "phones": {
        "speed": LogNormal(1.01e9, 0.524),
        "down": LogNormal(5172 * KIB, 0.484),
        "up": LogNormal(3103 * KIB, 0.701),
        "latency": LogNormal(0.05, 0.5),
        "watts": LogNormal(3.0, 0.3),
        "joules_per_byte": LogNormal(2e-6, 0.3),
    },
    "cross-silo": {
        "speed": LogNormal(5e12, 0.3),
        "down": LogNormal(125e6, 0.3),
        "up": LogNormal(125e6, 0.3),
        "latency": LogNormal(0.02, 0.3),
        "watts": LogNormal(300.0, 0.3),
        "joules_per_byte": LogNormal(1e-7, 0.3),
    },
    "iot": {
        "speed": LogNormal(1e8, 0.5),
        "down": LogNormal(250e3, 0.5),
        "up": LogNormal(250e3, 0.5),
        "latency": LogNormal(0.1, 0.5),
        "watts": LogNormal(2.0, 0.3),
        "joules_per_byte": LogNormal(5e-6, 0.3),
    },
}
"""Per kind of devices, the distribution of each quantity."""
DROPOUT = "dropout"
"""Column of a table: probability that a client drops out of a round."""


@dataclass(frozen=True)
class ProfileSource:
    """Source of the clients' profiles: columns of a table, and draws for missing columns.

    Attributes:
        seed: The run's seed.
        kind: One of KINDS.
        spread: Factor of all sigmas; 0 makes all devices equal.
        columns: Columns [K] of the table, by quantity; empty without a table.
    """

    seed: int
    kind: str
    spread: float
    columns: Mapping[str, Floats]

    def of(self, clients: Integers) -> Profiles:
        """Return the profiles of clients [n]; drawn ones depend on seed and client alone."""
        return Profiles(*(self._quantity(name, clients) for name in Profiles._fields))

    def _quantity(self, name: str, clients: Integers) -> Floats:
        if name in self.columns:
            return self.columns[name][clients]
        median, sigma = KINDS[self.kind][name]
        if not sigma * self.spread:
            return np.full(len(clients), median)
        return median * np.exp(sigma * self.spread * normals(self.seed, name, clients))


def read_columns(path: Path, clients: int) -> dict[str, Floats]:
    """Read a user's table of devices: `client`, and any of `dropout` and the fields of Profiles.

    Args:
        path: CSV with a header, or Parquet, with a row per client.
        clients: K, the number of clients; rows of further clients are ignored.

    Returns:
        The columns [K] by quantity.

    Raises:
        DataError: the file cannot be read, lacks a client or has it twice, or a value is out of
            range; the message names the client.
    """
    table = read_table(path, "clock.table")
    known = (*Profiles._fields, DROPOUT)
    if unknown := [name for name in table if name not in ("client", *known)]:
        raise DataError(
            f"clock.table={path}: unknown column {unknown[0]!r}; allowed are client,"
            f" {', '.join(known)}"
        )
    rows = rows_of(path, "clock.table", table["client"], clients)
    columns = {name: values[rows].astype(np.float64) for name, values in table.items()}
    for name, values in columns.items():
        least = 0.0 if name in ("latency", "watts", "joules_per_byte", DROPOUT) else None
        good = np.isfinite(values) & (values > 0 if least is None else values >= least)
        good &= values < 1 if name == DROPOUT else True
        if name != "client" and not good.all():
            client = int(np.argmin(good))
            allowed = "finite and above 0" if least is None else "finite and 0 or more"
            allowed = "from 0 to below 1" if name == DROPOUT else allowed
            raise DataError(
                f"clock.table={path}: {name} of client {client} is {values[client]:g}; must be"
                f" {allowed}"
            )
    return {name: values for name, values in columns.items() if name != "client"}
