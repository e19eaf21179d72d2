"""Fleet: the devices, networks and availability of all clients, and the cost of their work.

All values are pure functions of seed, settings and client, computed on demand for some clients, so
a fleet of a million clients costs nothing in advance. Time is in whole ticks of a microsecond since
the start of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raysim.clock.availability import TICKS_PER_SECOND, Always, Availability
from raysim.clock.draws import uniforms
from raysim.clock.profiles import DROPOUT, Profiles, ProfileSource
from raysim.errors import SettingsError
from raysim.numbers.arrays import Flags, Floats, Integers

MOST_SECONDS = 1e12
"""Longest pass of a client: sums of such ticks fit into 64 bits."""


@dataclass(frozen=True)
class Fleet:
    """Devices of all clients.

    Attributes:
        source: The clients' profiles.
        availability: Decides when clients are available.
        dropout: Probability that a client drops out of a round, unless the table has it.
    """

    source: ProfileSource
    availability: Availability = field(default_factory=Always)
    dropout: float = 0.0

    def profiles(self, clients: Any) -> Profiles:
        """Return speed, network and energy of clients [n]."""
        return self.source.of(_integers(clients))

    def ticks(
        self, clients: Any, flops: Any, bytes_up: Any, bytes_down: Any, *, trips: int = 1
    ) -> Integers:
        """Return the ticks of a pass of clients [n]: flops/speed + bytes/bandwidth + latency.

        Args:
            clients: The clients [n].
            flops: Their FLOPs, one number or [n].
            bytes_up: Bytes that they send, likewise.
            bytes_down: Bytes that they receive, likewise.
            trips: Trips to them and back, of a latency each.

        Raises:
            SettingsError: a client would need longer than 32,000 years.
        """
        clients = _integers(clients)
        device = self.profiles(clients)
        with np.errstate(over="ignore"):  # refused below
            seconds = flops / device.speed + bytes_up / device.up + bytes_down / device.down
        seconds = seconds + trips * device.latency
        if (late := np.flatnonzero(~(seconds <= MOST_SECONDS))).size:
            raise SettingsError(
                f"clock: client {clients[late[0]]} would need {seconds[late[0]]:g} seconds for its"
                f" work; must be at most {MOST_SECONDS:g}: raise its speed or bandwidth"
            )
        ticks: Integers = np.ceil(seconds * TICKS_PER_SECOND).astype(np.int64)
        return ticks

    def joules(self, clients: Any, flops: Any, bytes_up: Any, bytes_down: Any) -> Floats:
        """Return the joules of a pass of clients [n]: watts*flops/speed + joules of its bytes.

        The arguments are the same as of `ticks`.
        """
        device = self.profiles(clients)
        sent = np.asarray(bytes_up) + bytes_down
        joules: Floats = device.watts * flops / device.speed + device.joules_per_byte * sent
        return joules

    def available(self, clients: Any, tick: Any) -> Flags:
        """Return whether clients [n] are available at one instant, or at an instant each [n]."""
        clients = _integers(clients)
        return self.availability.available(clients, _instants(clients, tick))

    def next_available(self, clients: Any, tick: Any) -> Integers:
        """Return the first instants [n], `tick` or later, with clients [n] available.

        Raises:
            RunError: a client is not available for years.
        """
        clients = _integers(clients)
        return self.availability.next_available(clients, _instants(clients, tick))

    def first_available(self, clients: Any, tick: int) -> int:
        """Return the first instant, `tick` or later, with one of the clients [n] available.

        Raises:
            RunError: no client is available for years.
        """
        return self.availability.first_available(_integers(clients), tick)

    def dropouts(self, clients: Any, *keys: int) -> Floats:
        """Return the fraction of the pass after which each client [n] drops out; inf: it does not.

        Args:
            clients: The clients [n].
            keys: Keys of the round, or of anything else that a client drops out of.
        """
        clients = _integers(clients)
        rate = self.source.columns.get(DROPOUT)
        rates = self.dropout if rate is None else rate[clients]
        drops = uniforms(self.source.seed, "dropout", clients, *keys) < rates
        return np.where(drops, uniforms(self.source.seed, "dropped at", clients, *keys), np.inf)


def _integers(clients: Any) -> Integers:
    return np.atleast_1d(np.asarray(clients, dtype=np.int64))


def _instants(clients: Integers, tick: Any) -> Integers:
    return np.array(np.broadcast_to(np.asarray(tick, dtype=np.int64), clients.shape))
