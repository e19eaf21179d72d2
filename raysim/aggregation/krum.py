"""Krum: the one update that is nearest to its neighbours.

Source: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine
Tolerant Gradient Descent", NeurIPS 2017.

    score_i = sum of the m - f - 2 smallest ||d_i - d_j||^2, j != i
    w <- w + d_i of the smallest score; of equal ones, of the smallest client

Public codes differ: some add up m - f - 1 or m - f neighbours, distances that are not squared, or
fourth powers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.aggregation.robust import Robust, inner_products, squared_distances
from raysim.api.aggregation import AggregationPlan, ArrivedUpdates, Updates


class Krum(Robust):
    """The single update with the smallest distances to its m - f - 2 nearest others.

    Helps where up to f clients send anything at all; on unequal data it follows one client a round,
    and learns from the others only that they are near. Costs a file of each update, read twice, and
    m^2 inner products. Needs m >= 2f + 3. `krum_score` of a client in the tables is its score.
    """

    def measure(self, updates: Updates) -> Tensor:
        """Return the inner products of the updates [m, m]."""
        return inner_products(updates.differences)

    def decide(self, arrived: ArrivedUpdates) -> AggregationPlan:
        """Give all weight to the best update."""
        self.check(arrived, 2 * self.byzantine + 3, "2f + 3")
        distances = squared_distances(arrived.measured)
        scores = krum_scores(distances, self.byzantine)
        best = torch.sort(scores, stable=True).indices[: self.best(len(scores))]
        weights = torch.zeros_like(scores)
        weights[best] = 1 / len(best)
        return AggregationPlan(weights, columns={"krum_score": scores.numpy()})

    def best(self, m: int) -> int:
        """Return the number of updates that are averaged, of m."""
        return 1


def krum_scores(distances: Tensor, byzantine: int) -> Tensor:
    """Return the scores of updates [m]; at least one neighbour counts.

    Args:
        distances: Their squared distances [m, m].
        byzantine: f, the number of bad ones among them.
    """
    m = len(distances)
    others = distances.clone().fill_diagonal_(torch.inf).sort(dim=1).values
    return others[:, : max(m - byzantine - 2, 1)].sum(dim=1)
