"""Bulyan: updates chosen by Krum, one after another, then a mean around their median.

Source: El Mhamdi, Guerraoui and Rouault, "The Hidden Vulnerability of Distributed Learning in
Byzantium", ICML 2018.

    S = {}; theta = m - 2f times: move the update with the smallest score of Krum (krum.py) among
        the updates left, from these to S
    w <- w + per coordinate the mean of the theta - 2f values of S that are nearest to their median

Distances and scores are of the updates that are left; their m' - f - 2 neighbours would be none in
the end, and are at least one. The median is one of the values, as in the paper: of an even number
the lower of the middle two, as in the authors' code. Of values equally near to it the smaller ones
count. Public codes choose m - 2f - 2 updates, or means of multi-Krum in their place.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raysim.aggregation.krum import krum_scores
from raysim.aggregation.robust import Robust, inner_products, squared_distances
from raysim.api.aggregation import AggregationPlan, ArrivedUpdates, Updates


class Bulyan(Robust):
    """Mean around the median of the m - 2f updates that Krum chooses one after another.

    Helps where bad clients hide a large change of few coordinates in updates that Krum takes. Has
    Krum's costs, and sorts each coordinate over the chosen clients. Needs m >= 4f + 3.
    `aggregation_weight` of a client in the tables is 0 if it was not chosen.
    """

    def measure(self, updates: Updates) -> Tensor:
        """Return the inner products of the updates [m, m]."""
        return inner_products(updates.differences)

    def decide(self, arrived: ArrivedUpdates) -> AggregationPlan:
        """Choose m - 2f updates."""
        f, m = self.byzantine, len(arrived.clients)
        self.check(arrived, 4 * f + 3, "4f + 3")
        distances, left = squared_distances(arrived.measured), torch.arange(m)
        weights = torch.zeros(m, dtype=torch.float64)
        for _ in range(m - 2 * f):
            scores = krum_scores(distances[left][:, left], f)
            best = int(torch.sort(scores, stable=True).indices[0])
            weights[left[best]] = 1 / (m - 2 * f)
            left = torch.cat([left[:best], left[best + 1 :]])
        return AggregationPlan(weights)

    def combine(self, updates: Updates) -> Tensor:
        """Return the mean of each coordinate's values nearest to the median of the chosen ones."""
        chosen = updates.differences.numpy()[updates.weights.numpy() > 0]
        ordered = np.sort(chosen, axis=0)
        theta = len(ordered)
        median = ordered[(theta - 1) // 2]
        nearest = np.argsort(np.abs(ordered - median), axis=0, kind="stable")
        values = np.take_along_axis(ordered, nearest[: theta - 2 * self.byzantine], axis=0)
        return torch.from_numpy(values.mean(axis=0))
