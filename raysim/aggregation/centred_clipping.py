"""Centred clipping: updates are clipped around the last aggregate.

Source: Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization", ICML
2021, algorithm 2, and the authors' code.

    v <- the aggregate of the round before, 0 in the first one
    v <- v + (1/m) sum_k (d_k - v) * min(1, tau / ||d_k - v||)        `iterations` times
    w <- w + v

All clients have equal weights. The paper's clients send momenta of single gradients, with
tau = 10 / (1 - momentum). Here they send updates, with norms that grow with learning rate and local
steps: tau must be tuned. If clients send several groups in a pass, these are clipped together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from raysim.aggregation.robust import inner_products
from raysim.api.aggregation import Aggregation, AggregationPlan, ArrivedUpdates, Updates
from raysim.api.columns import Column


class CentredClipping(Aggregation):
    """Mean of the updates, each clipped to a distance from the last round's aggregate.

    Helps where some clients cannot be trusted, and bad ones add up small errors over rounds. Costs
    a file of each update, read twice, m^2 inner products, and an update in each checkpoint.
    `clipped_clients` of a round are the clients that the last iteration clipped.
    """

    keeps_last: ClassVar[bool] = True
    columns: ClassVar[Sequence[Column]] = (Column("clipped_clients"),)

    tau: float = Field(default=10.0, gt=0, description="largest distance from the last aggregate")
    iterations: int = Field(default=1, ge=1, description="number of iterations")

    def measure(self, updates: Updates) -> Tensor:
        """Return the inner products of the updates' differences from the last aggregate [m, m]."""
        return inner_products(updates.differences - updates.last)

    def decide(self, arrived: ArrivedUpdates) -> AggregationPlan:
        """Return the weights of these differences in the change of v."""
        products = arrived.measured
        m = len(products)
        weights, factors = products.new_zeros(m), products.new_ones(m)
        for _ in range(self.iterations):
            with_sum = products @ weights
            squared = products.diagonal() - 2 * with_sum + weights @ with_sum
            distances = squared.clamp(min=0).sqrt()
            factors = self.tau / distances.clamp(min=self.tau)
            weights = weights * (1 - factors.mean()) + factors / m
        clipped = int((factors < 1).sum())
        return AggregationPlan(weights, metrics={"clipped_clients": clipped})

    def combine(self, updates: Updates) -> Tensor:
        """Return v, the last aggregate and the sum of the weighted differences from it."""
        return updates.last + updates.weights @ (updates.differences - updates.last)
