"""The probability simplex: weights of clients that are not negative, and add up to 1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def projected(values: Floats) -> Floats:
    """Return the point of the simplex that is nearest to values [n].

    Source: Duchi, Shalev-Shwartz, Singer and Chandra, "Efficient Projections onto the l1-Ball for
    Learning in High Dimensions", ICML 2008, figure 1: max(v - theta, 0), where theta is such that
    the sum is 1.
    """
    ordered = np.sort(values - values.max())[::-1]  # a common shift changes nothing
    thetas = (np.cumsum(ordered) - 1) / np.arange(1, len(ordered) + 1)
    theta = thetas[ordered > thetas][-1]
    found: Floats = np.maximum(values - values.max() - theta, 0)
    return found
