"""Values of a tensor by magnitude: each goes to the finest int64 sum that can hold it."""

from __future__ import annotations

import torch
from torch import Tensor

LIMIT = 1.3e5
"""Largest magnitude in a tensor's finest sum, k = 0."""
STEP = 16
"""The sum k + 1 is this many bits coarser than the sum k."""


def by_magnitude(flat: Tensor) -> dict[int, Tensor]:
    """Return the values [n] by the k of their sum, with zeros for the others; always with k = 0.

    A value goes to the least k with |value| <= LIMIT * 2^(STEP * k).
    """
    magnitudes = flat.to(torch.float64).abs()
    largest = magnitudes.max().item()
    k, bound, left = 0, LIMIT, magnitudes > LIMIT
    by_k = {k: flat.masked_fill(left, 0)}
    while bound < largest:
        k += 1
        bound = LIMIT * 2.0 ** (STEP * k)
        here = left & (magnitudes <= bound)
        left = left & ~here
        if here.any():
            by_k[k] = flat.masked_fill(~here, 0)
    return by_k
