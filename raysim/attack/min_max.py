"""Min-max: no farther from any honest update than the two farthest honest ones from each other.

    max_i ||d_k - d_i||^2 <= max_ij ||d_i - d_j||^2

Source and search: `raysim.attack.envelope`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.attack.envelope import Envelope


class MinMax(Envelope):
    """Move against the honest mean as far as the largest distance of honest updates allows.

    Fitted to each round, so strong against aggregations that look at distances. Costs a file of
    each update, read twice, and m^2 inner products.
    """

    def largest(self, distances: Tensor, slopes: Tensor, square: Tensor, honest: Tensor) -> Tensor:
        """Return the least root of the honest updates; there one distance equals the largest."""
        room = (honest.max() - distances).clamp(min=0)
        root = (slopes.square() + square * room).sqrt()
        # Both are the root; the first loses digits where the slope is above 0, the second below it.
        return torch.where(slopes <= 0, (root - slopes) / square, room / (root + slopes)).min()
