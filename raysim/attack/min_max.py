"""Min-max: no farther from any honest update than the two farthest honest ones from each other.

    max_i ||d_k - d_i||^2 <= max_ij ||d_i - d_j||^2

Source and search: `raysim.attack.envelope`.
"""

from __future__ import annotations

from torch import Tensor

from raysim.attack.envelope import Envelope


class MinMax(Envelope):
    """Move against the honest mean as far as the largest distance of honest updates allows.

    Fitted to each round, so strong against aggregations that look at distances. Costs a file of
    each update, read twice, and m^2 inner products.
    """

    def passes(self, distances: Tensor, honest: Tensor) -> bool:
        """Return whether the largest distance is at most that between honest updates."""
        return bool(distances.max() <= honest.max())
