"""Median of the updates, coordinate by coordinate.

Source: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018, option I: of an even number of clients the mean of the middle two.
All clients have equal weights.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raysim.api.aggregation import Aggregation, Updates


class Median(Aggregation):
    """Coordinate-wise median of the updates: a minority of wrong ones cannot move it far.

    Helps where some clients cannot be trusted; on unequal data it is biased. Costs a file of each
    update, and a sort of each coordinate over the clients.
    """

    def combine(self, updates: Updates) -> Tensor:
        """Return the median of each coordinate."""
        ordered = np.sort(updates.differences.numpy(), axis=0)  # torch takes ten times as long
        m = len(ordered)
        return torch.from_numpy((ordered[(m - 1) // 2] + ordered[m // 2]) / 2)

    def tolerates(self, arrived: int) -> int:
        """Return the largest minority."""
        return (arrived - 1) // 2
