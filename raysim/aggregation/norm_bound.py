"""Norm bound: the mean of updates that the server scales down to a norm.

Source: Sun, Kairouz, Suresh and McMahan, "Can You Really Backdoor Federated Learning?",
arXiv:1911.07963, 2019, section 4; without its noise.

    w <- w + sum_k p_k d_k * min(1, norm / ||d_k||)        p_k by `weighting`

The norm is taken over all tensors of an update with differences. `channel.clip` does the same at
the clients, without a file of each update, but clients must be trusted to do it: a bad client that
replaces its message does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysim.api.aggregation import Aggregation, AggregationPlan, ArrivedUpdates, Updates
from raysim.api.columns import Column


class NormBound(Aggregation):
    """Weighted mean of the updates, those beyond a norm scaled down to it by the server.

    Helps against clients that send large updates, such as a model that is to replace the global one
    at once; not against many small ones. Costs a file of each update, read twice. `update_norm` of
    a client in the tables is its norm before; `clipped_clients` are those beyond the bound.
    """

    columns: ClassVar[Sequence[Column]] = (Column("clipped_clients"),)

    norm: float = Field(default=1.0, gt=0, description="largest Euclidean norm of an update")

    def measure(self, updates: Updates) -> Tensor:
        """Return the squared norms of the updates [m]."""
        return updates.differences.square().sum(dim=1)

    def decide(self, arrived: ArrivedUpdates) -> AggregationPlan:
        """Return the weights of the mean, smaller for updates beyond the norm."""
        norms = arrived.measured.sqrt()
        factors = self.norm / norms.clamp(min=self.norm)
        clipped = int((factors < 1).sum())
        return AggregationPlan(
            torch.from_numpy(arrived.shares) * factors,
            metrics={"clipped_clients": clipped},
            columns={"update_norm": norms.numpy()},
        )
