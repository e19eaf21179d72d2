"""Uniform selection: all clients are equally likely.

The cost is that of the clients that are looked at, not of the population, but where the server
waits for nobody and most clients are away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import ClassVar

import numpy as np

from raysim.core.seeds import sample_cohort
from raysim.core.selection import Integers, Sampling, Selection

SEARCHED = 1 << 16
"""Clients that are asked at once whether they are available."""


class Uniform(Selection):
    """Draw clients uniformly, as nearly all papers do.

    Where the server waits for clients that are away, all clients are drawn from; under the other
    policies of the clock, those that are available.
    """

    plans_ahead: ClassVar[bool] = True

    def select(self, now: Sampling) -> list[int]:
        """Return clients without replacement."""
        if now.members is not None:
            return _starting(now, now.members)
        drawn = sample_cohort(now.generator(), now.clients, now.size)
        return drawn if now.waits else _available(now, drawn)


def _available(now: Sampling, drawn: list[int]) -> list[int]:
    """Return those of drawn clients that are available, filled up with others that are."""
    chosen = _of_available(now, np.array(drawn))[: now.wanted]
    if len(chosen) < now.wanted:
        others = now.generator("more").permutation(now.clients)
        others = others[~np.isin(others, drawn)]
        for first in range(0, len(others), SEARCHED):
            more = _of_available(now, others[first : first + SEARCHED])
            chosen = np.concatenate([chosen, more])[: now.wanted]
            if len(chosen) == now.wanted:
                break
    found: list[int] = chosen.tolist()
    return found


def _of_available(now: Sampling, clients: Integers) -> Integers:
    return clients[now.available(clients)]


def _starting(now: Sampling, members: Integers) -> list[int]:
    """Return clients of a tier that start; the first of a round, of all clients, is its cohort.

    Clients are drawn among those not looked at yet, until enough of them are available.
    """
    generator, count = now.generator(), now.wanted
    seen, found, asked = _ranks(members, now.busy), list[int](), count
    while len(found) < count and (left := len(members) - len(seen)):
        ranks = _without(seen, sample_cohort(generator, left, min(asked, left)))
        on: list[int] = _of_available(now, members[ranks]).tolist()
        missing = count - len(found)
        if len(on) > missing:
            on = [on[rank] for rank in sample_cohort(generator, len(on), missing)]
        found += on
        seen, asked = sorted([*seen, *ranks]), 2 * asked
    return found


def _ranks(members: Integers, clients: Collection[int]) -> list[int]:
    """Return the ranks among the members, ascending, of those of some clients that are some."""
    asked = np.array(sorted(clients), dtype=np.int64)
    ranks = np.searchsorted(members, asked)
    ranks, asked = (each[ranks < len(members)] for each in (ranks, asked))
    found: list[int] = ranks[members[ranks] == asked].tolist()
    return found


def _without(seen: list[int], ranks: Iterable[int]) -> list[int]:
    """Return the members of some ranks among those that are not in an ascending list."""
    wanted = np.array([*ranks], dtype=np.int64)
    below = np.array(seen, dtype=np.int64) - np.arange(len(seen))  # others below each of the list
    found: list[int] = (wanted + np.searchsorted(below, wanted, side="right")).tolist()
    return found
