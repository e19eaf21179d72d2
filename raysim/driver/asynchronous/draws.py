"""Draws of the clients that start: uniform, among those that are available and not busy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raysim.core.seeds import sample_cohort, stream

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Draws:
    """Draws of one run; the first of a round, with nobody busy, is FedAvg's cohort of that round.

    The cost is that of the clients that are looked at, not of the population.

    Attributes:
        seed: The run's seed.
        clients: K, the number of clients.
        available: `available(clients, tick)`: whether clients [n] are available.
    """

    seed: int
    clients: int
    available: Callable[[list[int], int], Flags]

    def __call__(
        self, number: int, refill: int, count: int, busy: Collection[int], tick: int
    ) -> list[int]:
        """Draw clients without replacement; see `arrivals.Clock`."""
        generator = stream(self.seed, "cohort", number, *([refill] if refill else []))
        seen, found, asked = sorted(busy), list[int](), count
        while len(found) < count and (left := self.clients - len(seen)):
            ranks = sample_cohort(generator, left, min(asked, left))
            tried = _without(seen, ranks)
            on = [c for c, yes in zip(tried, self.available(tried, tick), strict=True) if yes]
            missing = count - len(found)
            if len(on) > missing:
                on = [on[rank] for rank in sample_cohort(generator, len(on), missing)]
            found += on
            seen, asked = sorted([*seen, *tried]), 2 * asked
        return found


def _without(seen: list[int], ranks: Iterable[int]) -> list[int]:
    """Return the clients of some ranks among those that are not in an ascending list."""
    wanted = np.array([*ranks], dtype=np.int64)
    below = np.array(seen, dtype=np.int64) - np.arange(len(seen))  # others below each of the list
    found: list[int] = (wanted + np.searchsorted(below, wanted, side="right")).tolist()
    return found


def always(clients: list[int], tick: int) -> Flags:
    """Return that all clients are available."""
    return np.ones(len(clients), dtype=bool)
