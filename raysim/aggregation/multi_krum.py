"""Multi-Krum: the mean of the updates with the best scores of Krum.

Source: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine
Tolerant Gradient Descent", NeurIPS 2017, section 4.

    w <- w + the mean of the s updates of the smallest scores (krum.py)

The paper lets s be chosen; by default it is m - f - 2. Public codes take m - f - 2 or m - f.
"""

from __future__ import annotations

from pydantic import Field

from raysim.aggregation.krum import Krum
from raysim.api.aggregation import AggregationPlan, ArrivedUpdates
from raysim.errors import SettingsError


class MultiKrum(Krum):
    """Mean of the s updates with the smallest distances to their m - f - 2 nearest others.

    Helps where Krum does, with less noise: it averages all but the most distant updates. On unequal
    data it cuts clients with rare samples. Has Krum's costs. Needs m >= 2f + 3.
    """

    chosen: int | None = Field(
        default=None, ge=1, description="s, updates that are averaged; None: m - f - 2"
    )

    def decide(self, arrived: ArrivedUpdates) -> AggregationPlan:
        """Give equal weights to the best updates."""
        m = len(arrived.clients)
        if self.chosen and self.chosen > m:
            raise SettingsError(
                f"aggregation.chosen={self.chosen}: must be at most the updates of a round; there"
                f" are {m}"
            )
        return super().decide(arrived)

    def best(self, m: int) -> int:
        """Return the number of updates that are averaged, of m."""
        return self.chosen or m - self.byzantine - 2
