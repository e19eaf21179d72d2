"""Whole numbers in proportion to fractions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raysim.samples.client_indices import Indices


def cut(fractions: npt.NDArray[np.float64], totals: Indices) -> Indices:
    """Return whole numbers [..., K] near `fractions` [..., K] of their sums, `totals` [..., 1]."""
    # Cutting at rounded running sums gives each sample to exactly one client.
    ends = np.floor(np.cumsum(fractions, axis=-1) * totals).astype(np.int64)
    ends[..., -1:] = totals
    return np.diff(np.minimum(ends, totals), axis=-1, prepend=0)
