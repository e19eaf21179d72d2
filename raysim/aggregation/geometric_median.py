"""Geometric median, smoothed: the point with the least sum of distances to the updates.

Source: Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", IEEE
Transactions on Signal Processing, 2022 (RFA), smoothed Weiszfeld algorithm, and the authors' code.

    z <- sum_k alpha_k d_k                                alpha_k the weights of the mean
    z <- sum_k b_k d_k / sum_k b_k,   b_k = alpha_k / max(nu, ||z - d_k||)     `iterations` times,
         or until sum_k alpha_k ||z - d_k|| changes by less than `tolerance` of itself
    w <- w + z

z is a mean of the updates in every iteration, so that its distances follow from the inner products
of the updates, and the files are read twice however many iterations there are. The authors take
the medians of models, which have the same distances. Other public codes start at 0 with nu = 0.1
and three iterations (`start="zero"`): there z starts at the model that the clients received.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.aggregation.robust import inner_products
from raysim.api.aggregation import Aggregation, AggregationPlan, ArrivedUpdates, Updates
from raysim.api.columns import Column


class GeometricMedian(Aggregation):
    """Smoothed geometric median of the updates: less than half of the weight cannot move it far.

    Helps where some clients cannot be trusted, and needs no guess of how many. It has the weights
    of the mean, so a client may claim many samples: `weighting=uniform` gives all the same weight.
    Updates far from the others move z. Each iteration leaves about bad weight / good weight of this
    shift, so the authors' four are few where many are bad. Costs a file of each update, read twice,
    and m^2 inner products. In the tables a round has its `weiszfeld_iterations`, and a client the
    `median_distance` of its update.
    """

    columns: ClassVar[Sequence[Column]] = (Column("weiszfeld_iterations"),)

    start: Literal["mean", "zero"] = Field(
        default="mean", description="start at the mean of the updates, or at 0"
    )
    nu: float = Field(default=1e-5, gt=0, description="least divisor of a weight, a distance")
    iterations: int = Field(default=4, ge=1, description="most iterations")
    tolerance: float = Field(
        default=1e-6, ge=0, description="relative change of the sum of distances that ends it"
    )

    def measure(self, updates: Updates) -> Tensor:
        """Return the inner products of the updates [m, m]."""
        return inner_products(updates.differences)

    def decide(self, arrived: ArrivedUpdates) -> AggregationPlan:
        """Return the weights of the updates in the median."""
        products, alpha = arrived.measured, torch.from_numpy(arrived.shares)
        weights = alpha if self.start == "mean" else torch.zeros_like(alpha)
        distances, done = _distances(products, weights), 0
        while done < self.iterations:
            before = float(alpha @ distances)
            weights = alpha / distances.clamp(min=self.nu)
            weights /= weights.sum()
            distances, done = _distances(products, weights), done + 1
            if abs(before - float(alpha @ distances)) < self.tolerance * float(alpha @ distances):
                break
        return AggregationPlan(
            weights,
            metrics={"weiszfeld_iterations": done},
            columns={"median_distance": distances.numpy()},
        )


def _distances(products: Tensor, weights: Tensor) -> Tensor:
    """Return the distances of updates from their weighted sum [m].

    Args:
        products: Their inner products [m, m].
        weights: The weights [m].
    """
    with_sum = products @ weights
    squared = products.diagonal() - 2 * with_sum + weights @ with_sum
    return squared.clamp(min=0).sqrt()
