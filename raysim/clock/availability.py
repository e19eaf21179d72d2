"""Availability of clients: always, an on/off renewal process, or a table of daily windows.

All are pure functions of seed, client and instant, in ticks since the start of the run. A day of a
renewal process begins with its stationary law, so that a day is drawn without the previous ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from raysim.clock.draws import uniforms
from raysim.errors import DataError, RunError
from raysim.numbers.arrays import Flags, Integers
from raysim.numbers.client_tables import read_table

TICKS_PER_SECOND = 1_000_000
DAY = 24 * 3600 * TICKS_PER_SECOND
MOST_DAYS = 3_660
"""Number of days to search for a client's next on period."""


class Availability(Protocol):
    """Rule that decides when clients are available."""

    def available(self, clients: Integers, ticks: Integers) -> Flags:
        """Return whether clients [n] are available at their instants [n]."""
        ...

    def next_available(self, clients: Integers, ticks: Integers) -> Integers:
        """Return the first instants [n], `ticks` [n] or later, with clients [n] available."""
        ...

    def first_available(self, clients: Integers, tick: int) -> int:
        """Return the first instant, `tick` or later, with one of the clients [n] available."""
        ...


@dataclass(frozen=True)
class Always:
    """Availability at any time."""

    def available(self, clients: Integers, ticks: Integers) -> Flags:
        """Return True for all."""
        return np.ones(len(clients), dtype=bool)

    def next_available(self, clients: Integers, ticks: Integers) -> Integers:
        """Return the instants themselves."""
        return ticks

    def first_available(self, clients: Integers, tick: int) -> int:
        """Return the instant itself."""
        return tick


@dataclass(frozen=True)
class Renewal:
    """On/off renewal process: on and off periods of exponential length, in turn.

    Attributes:
        seed: The run's seed.
        on: Mean length of an on period, in ticks.
        off: Mean length of an off period, in ticks.
    """

    seed: int
    on: float
    off: float

    def available(self, clients: Integers, ticks: Integers) -> Flags:
        """Return whether clients [n] are in an on period at their instants [n]."""
        return self._periods(clients, ticks)[0]

    def next_available(self, clients: Integers, ticks: Integers) -> Integers:
        """Return the first instants from `ticks` [n] on that lie in on periods.

        Raises:
            RunError: a client has no on period for years.
        """
        instants = ticks.copy()
        waiting = np.arange(len(instants))
        for _ in range(MOST_DAYS):
            on, end = self._periods(clients[waiting], instants[waiting])
            instants[waiting] = np.where(on, instants[waiting], end)
            waiting = waiting[~on & (end % DAY == 0)]  # a new state is drawn at midnight
            if not len(waiting):
                return instants
        raise RunError(
            f"clock.off_hours: client {clients[waiting[0]]} is not available for {MOST_DAYS} days"
        )

    def first_available(self, clients: Integers, tick: int) -> int:
        """Return the first instant from `tick` on that lies in an on period of one of the clients.

        Raises:
            RunError: no client has an on period for years.
        """
        for _ in range(MOST_DAYS):
            on, ends = self._periods(clients, np.full(len(clients), tick))
            if on.any():
                return tick
            midnight = (tick // DAY + 1) * DAY
            if (first := int(ends.min())) < midnight:
                return first
            tick = midnight
        raise RunError(f"clock.off_hours: no client is available for {MOST_DAYS} days")

    def _periods(self, clients: Integers, ticks: Integers) -> tuple[Flags, Integers]:
        """Return state (on or off) and end [n] of the periods that contain instants [n].

        The end is at most the next midnight.
        """
        days = ticks // DAY
        on = uniforms(self.seed, "first", clients, days) < self.on / (self.on + self.off)
        ends = days * DAY
        going, number = np.arange(len(clients)), 0
        while len(going):
            draws = -np.log(uniforms(self.seed, "length", clients[going], days[going], number))
            mean = np.where(on[going], self.on, self.off)
            ends[going] += np.maximum(draws * mean, 1).astype(np.int64)
            going = going[ends[going] <= ticks[going]]
            on[going] = ~on[going]
            number += 1
        return on, np.minimum(ends, (days + 1) * DAY)


@dataclass(frozen=True)
class Windows:
    """Daily windows of each client, the same every day.

    Attributes:
        starts: Beginnings of the windows, `client * DAY + tick of the day` [W], ascending.
        ends: Ends of the windows, likewise [W]; exclusive.
    """

    starts: Integers
    ends: Integers

    def available(self, clients: Integers, ticks: Integers) -> Flags:
        """Return whether clients [n] are in a window at their instants [n]."""
        at = clients * DAY + ticks % DAY
        last = np.searchsorted(self.starts, at, side="right") - 1
        inside: Flags = (last >= 0) & (at < self.ends[np.maximum(last, 0)])
        return inside

    def next_available(self, clients: Integers, ticks: Integers) -> Integers:
        """Return the first instants from `ticks` [n] on that lie in windows."""
        at = clients * DAY + ticks % DAY
        following = np.searchsorted(self.starts, at, side="right")
        first = np.searchsorted(self.starts, clients * DAY)
        padded = np.append(self.starts, np.iinfo(np.int64).max)
        today = padded[following] < (clients + 1) * DAY
        begins = np.where(today, padded[following], padded[first] + DAY)
        instants: Integers = np.where(self.available(clients, ticks), ticks, ticks + begins - at)
        return instants

    def first_available(self, clients: Integers, tick: int) -> int:
        """Return the first instant from `tick` on that lies in a window of one of the clients."""
        return int(self.next_available(clients, np.full(len(clients), tick)).min())


def read_windows(path: Path, clients: int) -> Windows:
    """Read a user's table of windows: `client`, `start`, `end` in seconds of the day.

    Raises:
        DataError: the file cannot be read, a window is invalid, or a client has no window.
    """
    table = read_table(path, "clock.windows")
    key = f"clock.windows={path}"
    if {*table} != {"client", "start", "end"}:
        raise DataError(f"{key}: must have the columns client, start, end; has {', '.join(table)}")
    rows = table["client"] < clients
    client, start, end = (table[name][rows] for name in ("client", "start", "end"))
    first, last = (np.rint(values.astype(float) * TICKS_PER_SECOND) for values in (start, end))
    good = (first >= 0) & (first < last) & (last <= DAY)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"{key}: window {start[row]:.12g} to {end[row]:.12g} of client {client[row]:g}: must"
            " be seconds of a day, in whole microseconds 0 <= start < end <= 86400"
        )
    missing = np.flatnonzero(np.bincount(client.astype(np.int64), minlength=clients) == 0)
    if len(missing):
        raise DataError(
            f"{key}: client {missing[0]} has no window ({len(missing)} of {clients} have none)"
        )
    order = np.lexsort((first, client))
    base = client[order].astype(np.int64) * DAY
    starts, ends = (base + ticks[order].astype(np.int64) for ticks in (first, last))
    # Overlapping windows are one: an end is never before an earlier window's end.
    return Windows(starts, np.maximum.accumulate(ends))
