"""Mean of the updates, an exact sum.

    arrived:  w <- w + sum_k p_k d_k            p_k by `weighting`, of the clients that arrived
    fixed:    w <- w + sum_k d_k / (C*K)

With `fixed` the sum is divided by the expected number of clients, not by those of the round, so
that each client moves the model by at most 1/(C*K) of its difference, as differential privacy needs
under Poisson selection (McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private
Recurrent Language Models", ICLR 2018, the estimator f_f with equal weights).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from raysim.core.aggregation import Aggregation, AggregationPlan, ArrivedUpdates
from raysim.core.rules import Weighting


class Mean(Aggregation):
    """Weighted mean of the updates; the default of nearly all papers.

    Costs one addition a client, and no memory for updates.
    """

    sees_updates: ClassVar[bool] = False

    weighting: Literal["arrived", "fixed"] = Field(
        default="arrived",
        description="divide by the weight that arrived, or by C*K, each client having weight 1",
    )

    def decide(self, arrived: ArrivedUpdates) -> AggregationPlan:
        """Give clients their weights, where an attack has the updates seen one by one."""
        return AggregationPlan(torch.from_numpy(arrived.shares))

    @property
    def weights(self) -> Weighting | None:
        """Equal weights if the divisor is fixed."""
        return "uniform" if self.weighting == "fixed" else None

    @property
    def bounds_share(self) -> bool:
        """True if the divisor is fixed."""
        return self.weighting == "fixed"

    def factor(self, arrived: int, expected: float) -> float:
        """Return m / (C*K) if the divisor is fixed, else 1."""
        return arrived / expected if self.weighting == "fixed" else 1.0
