"""Mean of the updates, an exact sum.

    weighting="arrived":  w <- w + sum_k p_k d_k    p_k by `weighting`, of the clients that arrived
    weighting="fixed":    w <- w + sum_k d_k / M    M = C*K of Poisson cohorts, m of others

With `fixed` the sum is divided by the expected number of clients M, not by the number arrived, so
that each client moves the model by at most 1/M of its difference, as differential privacy needs
(McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models",
ICLR 2018, the estimator f_f with equal weights).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from raysim.api.aggregation import Aggregation, AggregationPlan, ArrivedUpdates
from raysim.api.rules import Weighting


class Mean(Aggregation):
    """Weighted mean of the updates; the default of nearly all papers.

    Costs one addition a client, and no memory for updates.
    """

    sees_updates: ClassVar[bool] = False

    weighting: Literal["arrived", "fixed"] = Field(
        default="arrived",
        description="divide by the weight that arrived, or by the expected number of clients, each"
        " having weight 1",
    )

    def decide(self, arrived: ArrivedUpdates) -> AggregationPlan:
        """Give clients their weights, if an attack needs the updates one by one."""
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
        """Return the clients that arrived over those expected if the divisor is fixed, else 1."""
        return arrived / expected if self.weighting == "fixed" else 1.0
