"""Trimmed mean: each coordinate without its largest and smallest values.

Source: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018, option II, with b = beta * m.

    w <- w + the mean of the m - 2b values of a coordinate between its b smallest and b largest

All clients have equal weights. Some public codes call the mean of the m - b values nearest to the
median a trimmed mean; that is the mean around the median (Xie, Koyejo and Gupta,
arXiv:1802.10116, 2018).
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from raysim.aggregation.robust import Robust
from raysim.api.aggregation import AggregationPlan, ArrivedUpdates, Updates
from raysim.errors import SettingsError


class TrimmedMean(Robust):
    """Coordinate-wise mean without the b largest and b smallest values.

    Helps where up to b clients cannot be trusted, with less noise than the median; on unequal data
    it is biased like the median. Costs a file of each update, and a sort of each coordinate over
    the clients. Needs m > 2b.
    """

    trim: int | None = Field(
        default=None, ge=0, description="b, values left out at either end; None: byzantine"
    )

    def tolerates(self, arrived: int) -> int:
        """Return b."""
        return self.trimmed

    @property
    def trimmed(self) -> int:
        """The values b that are left out at either end."""
        return self.byzantine if self.trim is None else self.trim

    def decide(self, arrived: ArrivedUpdates) -> AggregationPlan:
        """Check that values are left: m > 2b."""
        m, b = len(arrived.clients), self.trimmed
        if self.trim is None:
            self.check(arrived, 2 * b + 1, "2f + 1")
        elif m <= 2 * b:
            raise SettingsError(
                f"aggregation.trim={b}: {self.title} needs at least {2 * b + 1} updates in a round,"
                f" 2 * trim + 1; there are {m}: choose more clients a round, or a smaller trim"
            )
        return AggregationPlan()

    def combine(self, updates: Updates) -> Tensor:
        """Return the mean of each coordinate's middle values."""
        ordered = np.sort(updates.differences.numpy(), axis=0)
        return torch.from_numpy(ordered[self.trimmed : len(ordered) - self.trimmed].mean(axis=0))
