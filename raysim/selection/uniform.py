"""Uniform selection: all clients are equally likely.

The cost grows with the searched clients, not with the population, unless the server does not wait
for clients and most of them are away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import ClassVar

import numpy as np

from raysim.api.privacy import Draw
from raysim.api.selection import Sampling, Selection
from raysim.numbers.arrays import Integers
from raysim.numbers.seeds import sample_cohort

SEARCHED = 1 << 16
"""Clients for each computation of availability."""


class Uniform(Selection):
    """Uniform draw of clients, as in nearly all papers.

    If the server waits for clients that are away, all clients may be drawn; with other policies of
    the clock, only available ones.
    """

    draw: ClassVar[Draw | None] = "fixed"
    plans_ahead: ClassVar[bool] = True

    def select(self, sampling: Sampling) -> list[int]:
        """Return clients without replacement."""
        if sampling.members is not None:
            return _starting(sampling, sampling.members)
        drawn = sample_cohort(sampling.generator(), sampling.clients, sampling.size)
        return drawn if sampling.waits else _available(sampling, drawn)


def _available(sampling: Sampling, drawn: list[int]) -> list[int]:
    """Return the available ones of drawn clients, filled up with other available clients."""
    chosen = _of_available(sampling, np.array(drawn))[: sampling.wanted]
    if len(chosen) < sampling.wanted:
        others = sampling.generator("more").permutation(sampling.clients)
        others = others[~np.isin(others, drawn)]
        for first in range(0, len(others), SEARCHED):
            more = _of_available(sampling, others[first : first + SEARCHED])
            chosen = np.concatenate([chosen, more])[: sampling.wanted]
            if len(chosen) == sampling.wanted:
                break
    filled: list[int] = chosen.tolist()
    return filled


def _of_available(sampling: Sampling, clients: Integers) -> Integers:
    return clients[sampling.available(clients)]


def _starting(sampling: Sampling, members: Integers) -> list[int]:
    """Return clients of a tier that start; a round's first draw, of all clients, is its cohort.

    Clients are drawn among unseen ones, until enough of them are available.
    """
    generator, count = sampling.generator(), sampling.wanted
    seen, starting, asked = _ranks(members, sampling.busy), list[int](), count
    while len(starting) < count and (left := len(members) - len(seen)):
        ranks = _without(seen, sample_cohort(generator, left, min(asked, left)))
        on: list[int] = _of_available(sampling, members[ranks]).tolist()
        missing = count - len(starting)
        if len(on) > missing:
            on = [on[rank] for rank in sample_cohort(generator, len(on), missing)]
        starting += on
        seen, asked = sorted([*seen, *ranks]), 2 * asked
    return starting


def _ranks(members: Integers, clients: Collection[int]) -> list[int]:
    """Return the ranks among the members, ascending, of some clients; others are left out."""
    asked = np.array(sorted(clients), dtype=np.int64)
    ranks = np.searchsorted(members, asked)
    ranks, asked = (array[ranks < len(members)] for array in (ranks, asked))
    of_members: list[int] = ranks[members[ranks] == asked].tolist()
    return of_members


def _without(seen: list[int], ranks: Iterable[int]) -> list[int]:
    """Return the numbers at some ranks among those not in the ascending list `seen`."""
    wanted = np.array([*ranks], dtype=np.int64)
    below = np.array(seen, dtype=np.int64) - np.arange(len(seen))  # others below each of the list
    numbers: list[int] = (wanted + np.searchsorted(below, wanted, side="right")).tolist()
    return numbers
