"""Draws of the clients of a tier that start: uniform, among those available and not busy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raysim.core.seeds import sample_cohort, stream

Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Draws:
    """Draws of one tier; the first of a round, of all clients, is FedAvg's cohort of that round.

    The cost is that of the clients that are looked at, not of the population.

    Attributes:
        seed: The run's seed.
        members: The clients of the tier, ascending.
        available: `available(clients, tick)`: whether clients [n] are available.
    """

    seed: int
    members: Integers
    available: Callable[[list[int], int], Flags]

    def __call__(
        self, number: int, refill: int, count: int, busy: Collection[int], tick: int
    ) -> list[int]:
        """Draw clients without replacement; see `arrivals.Clock`."""
        generator = stream(self.seed, "cohort", number, *([refill] if refill else []))
        seen, found, asked = self._ranks(busy), list[int](), count
        while len(found) < count and (left := len(self.members) - len(seen)):
            ranks = _without(seen, sample_cohort(generator, left, min(asked, left)))
            tried = self.members[ranks].tolist()
            on = [c for c, yes in zip(tried, self.available(tried, tick), strict=True) if yes]
            missing = count - len(found)
            if len(on) > missing:
                on = [on[rank] for rank in sample_cohort(generator, len(on), missing)]
            found += on
            seen, asked = sorted([*seen, *ranks]), 2 * asked
        return found

    def _ranks(self, clients: Collection[int]) -> list[int]:
        """Return the ranks among the members, ascending, of those of some clients that are some."""
        asked = np.array(sorted(clients), dtype=np.int64)
        ranks = np.searchsorted(self.members, asked)
        ranks, asked = (each[ranks < len(self.members)] for each in (ranks, asked))
        found: list[int] = ranks[self.members[ranks] == asked].tolist()
        return found


def _without(seen: list[int], ranks: Iterable[int]) -> list[int]:
    """Return the members of some ranks among those that are not in an ascending list."""
    wanted = np.array([*ranks], dtype=np.int64)
    below = np.array(seen, dtype=np.int64) - np.arange(len(seen))  # others below each of the list
    found: list[int] = (wanted + np.searchsorted(below, wanted, side="right")).tolist()
    return found


def always(clients: list[int], tick: int) -> Flags:
    """Return that all clients are available."""
    return np.ones(len(clients), dtype=bool)
