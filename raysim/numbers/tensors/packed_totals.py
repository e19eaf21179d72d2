"""Totals of an exact sum in six bytes each, for the network.

If a mean times the summed clients' weight is below 2 in magnitude, the upper two bytes of an int64
total hold only its sign. Totals that need these bytes travel whole, after the others; if many need
them, all travel whole.
"""

from __future__ import annotations

import numpy as np

from raysim.numbers.arrays import Array, Integers

Parts = tuple[Array, ...]
"""Totals [n] unsplit, or in four parts, see `split`."""
LIMIT = 2**47


def split(totals: Integers) -> Parts:
    """Return lower four bytes [n], the next two [n]; positions and values of larger totals."""
    places = np.empty(0, np.int64)
    if totals.max(initial=0) >= LIMIT or totals.min(initial=0) < -LIMIT:
        places = np.flatnonzero((totals >= LIMIT) | (totals < -LIMIT))
    if len(places) > len(totals) // 8:  # two bytes a total would not pay
        return (totals,)
    lower, next_two = totals.view(np.int32)[::2].copy(), totals.view(np.int16)[2::4].copy()
    return lower, next_two, places, totals[places]


def join(parts: Parts) -> Integers:
    """Return the totals [n] of parts; unsplit totals without a copy."""
    if len(parts) == 1:
        return parts[0]
    lower, next_two, places, values = parts
    totals = np.empty(len(lower), np.int64)
    totals.view(np.int32)[::2], totals.view(np.int32)[1::2] = lower, next_two
    totals[places] = values
    return totals
