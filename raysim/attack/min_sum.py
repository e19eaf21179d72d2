"""Min-sum: no farther from all honest updates than the most central honest one.

    sum_i ||d_k - d_i||^2 <= min_j sum_i ||d_j - d_i||^2

Source and search: `raysim.attack.envelope`. The paper has a maximum over j; the authors' code the
minimum, which is taken here.
"""

from __future__ import annotations

from torch import Tensor

from raysim.attack.envelope import Envelope


class MinSum(Envelope):
    """Move against the honest mean as far as the sum of distances of an honest update allows.

    Weaker than `min_max`, and harder to see: Krum would choose it. Costs a file of each update,
    read twice, and m^2 inner products.
    """

    def largest(self, distances: Tensor, slopes: Tensor, square: Tensor, honest: Tensor) -> Tensor:
        """Return the root of the sum of distances; the slopes add up to 0 and cancel."""
        room = (honest.sum(dim=1).min() - distances.sum()).clamp(min=0)
        return (room / (len(distances) * square)).sqrt()
