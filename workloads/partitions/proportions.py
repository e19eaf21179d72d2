"""Clients of given sizes whose class proportions are drawn at random.

Source: Chen, Bhardwaj and Marculescu, FedMAX: Mitigating Activation Divergence for Accurate and
Communication-Efficient Federated Learning, ECML PKDD 2020, section 4.4: devices are given random,
different proportions of the classes of APTOS (five) and Chest X-ray (two). As in the authors'
public code, devices are of equal size and every sample is used. Deviation: there each device takes
a uniformly random part of what it still lacks, class by class, so that rare classes go to the first
devices and the last ones hold the most frequent class; here all clients draw alike.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from raysim.samples.client_indices import Indices
from raysim.workloads.partitions.dirichlet import Dirichlet
from raysim.workloads.partitions.sizes import Sized, cut

SMALLEST = 1e-9
"""Least weight of a class, so that any weights can be scaled to the totals."""
SWEEPS = 300
"""Scalings of rows and columns; they agree to 1e-12 from alpha=0.1 on."""


class Proportions(Sized, Dirichlet):
    """Draw class weights for each client from Dir_C(alpha) and scale them to the data.

    Rows and columns are scaled in turn (iterative proportional fitting) until all clients have
    equally many samples, or those of `sizes`, and every sample is used; rounding adds or takes at
    most one per class.

    Attributes:
        alpha: Concentration of a client's weights; 1 makes all weights equally likely, small
            values give each client few classes.
        minimum: Samples that each client must have.
    """

    alpha: Annotated[float, Field(ge=0.1, le=1e6)] = 1.0

    def _draw(self, totals: Indices, clients: int, generator: np.random.Generator) -> Indices:
        """Draw how many samples of each class each client holds [C, K]."""
        weights = generator.dirichlet(np.full(len(totals), self.alpha), size=clients)  # [K, C]
        weights = np.maximum(weights, SMALLEST)
        wanted = totals.sum() / clients
        if self.sizes is not None:
            wanted = self.client_sizes(int(totals.sum()), clients, generator)[:, None]
        for _ in range(SWEEPS):
            weights *= wanted / weights.sum(axis=1, keepdims=True)
            weights *= totals / weights.sum(axis=0)
        return cut((weights / totals).T, totals[:, None])
