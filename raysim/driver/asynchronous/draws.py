"""Draws of clients of a tier by the run's selection."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from raysim.api.selection import Sampling
from raysim.clock.availability import TICKS_PER_SECOND
from raysim.config import Settings
from raysim.driver.rounds.selecting import generator, select
from raysim.numbers.arrays import Flags, Floats, Integers


@dataclass(frozen=True)
class Draws:
    """Draws of one tier.

    Attributes:
        settings: The run's settings.
        sizes: Samples that each client trains on [K].
        members: The clients of the tier, ascending.
        ticks: Ticks that each client's work takes [K].
        available: `available(clients, tick)` returns whether clients [n] are available.
    """

    settings: Settings
    sizes: Integers
    members: Integers
    ticks: Integers
    available: Callable[[Any, int], Flags]

    def __call__(
        self, number: int, refill: int, count: int, busy: Collection[int], tick: int
    ) -> list[int]:
        """Draw clients without replacement; see `arrivals.Clock`."""
        settings = self.settings
        keys = [number, refill] if refill else [number]
        sampling = Sampling(
            number=number,
            clients=len(self.sizes),
            fraction=settings.fraction,
            size=count,
            wanted=count,
            samples=self.sizes,
            generator=partial(generator, settings.seed, keys),
            seconds=self._seconds,
            available=lambda clients: self.available(clients, tick),
            waits=False,
            members=self.members,
            busy=busy,
        )
        return select(settings.selection, sampling)

    def _seconds(self, clients: Any) -> Floats:
        seconds: Floats = self.ticks[clients] / TICKS_PER_SECOND
        return seconds


def always(clients: Any, tick: int) -> Flags:
    """Return True for each client [n]."""
    return np.ones(len(clients), dtype=bool)
