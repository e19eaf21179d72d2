"""Participants: the clients that may take part in training, if some are kept out of it.

Legend: K clients in all, P participants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from raysim.numbers.arrays import Array, Integers
from raysim.numbers.seeds import stream


@dataclass(frozen=True)
class Participants:
    """Clients that may take part in training: all, or all but the new ones.

    Attributes:
        clients: Number of clients K.
        new: The clients that are kept out of training, ascending.
    """

    clients: int
    new: Integers

    def __len__(self) -> int:
        return self.clients - len(self.new)

    @cached_property
    def numbers(self) -> Integers:
        """Their numbers, ascending [P]."""
        everyone = np.arange(self.clients)
        return np.delete(everyone, self.new) if len(self.new) else everyone

    @property
    def chosen(self) -> Integers | None:
        """Their numbers, ascending [P]; None if they are all clients."""
        return self.numbers if len(self.new) else None

    @cached_property
    def listed(self) -> Sequence[int]:
        """Their numbers; a range if they are all clients."""
        return tuple(self.numbers.tolist()) if len(self.new) else range(self.clients)

    def of(self, values: Array) -> Array:
        """Return the values [P] of participants, given the values of all clients [K]."""
        return np.delete(values, self.new) if len(self.new) else values

    def at(self, ranks: Any) -> Integers:
        """Return the numbers of the participants at some ranks [n]."""
        numbers: Integers = self.numbers[ranks] if len(self.new) else np.asarray(ranks)
        return numbers

    def ranks(self, clients: Integers) -> Integers:
        """Return the ranks of some participants among them, ascending clients or not."""
        return clients - np.searchsorted(self.new, clients) if len(self.new) else clients

    def first_new(self, clients: Sequence[int]) -> int | None:
        """Return the first of some clients that is kept out of training; None if none is."""
        if not len(self.new):
            return None
        is_new = np.isin(asked := np.asarray(clients), self.new)
        return int(asked[is_new][0]) if is_new.any() else None


@lru_cache(maxsize=8)
def participants_of(clients: int, share: float, seed: int) -> Participants:
    """Return the participants among K clients; the seed draws the share that is kept out.

    Args:
        clients: Number of clients K.
        share: Share of them that is kept out of training.
        seed: The run's seed.
    """
    # of a share above 0 one or more, never all
    count = min(max(round(share * clients), 1), clients - 1) if share else 0
    if not count:
        return Participants(clients, np.empty(0, dtype=np.int64))
    drawn = stream(seed, "kept-out-clients").choice(clients, count, replace=False, shuffle=False)
    return Participants(clients, np.sort(drawn).astype(np.int64))
