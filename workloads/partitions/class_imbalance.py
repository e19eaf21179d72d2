"""Clients with unequal numbers of samples and unequal class proportions.

Source: Chandran et al., Weight Divergence Driven Divide-and-Conquer Approach for Optimal Federated
Learning from non-IID Data, 2021, section 4.1, which follows Wang et al., Federated Learning with
Matched Averaging, ICLR 2020, section 4 (FedMA): for each class, proportions over the K clients are
drawn from Dir_K(0.5). As in FedMA's published code, a client that holds N/K samples or more gets
nothing of the classes that follow, and the draw is repeated until each client has ten samples.
`dirichlet` is the same without that cap, as the papers' text has it.
"""

from __future__ import annotations

import numpy as np

from raysim.samples.client_indices import Indices
from raysim.user_input.limits import Count
from raysim.workloads.partitions.dirichlet import Dirichlet
from raysim.workloads.partitions.sizes import cut


class ClassImbalance(Dirichlet):
    """Divide each class by proportions from Dir_K(alpha), over the clients below N/K samples.

    Attributes:
        alpha: Concentration; small values give each client few classes.
        minimum: Samples that each client must have.
    """

    minimum: Count = 10

    def _draw(self, totals: Indices, clients: int, generator: np.random.Generator) -> Indices:
        """Draw how many samples of each class each client holds [C, K]."""
        counts = np.zeros((len(totals), clients), dtype=np.int64)
        for number, total in enumerate(totals[:, None]):
            takers = np.flatnonzero(counts.sum(axis=0) < totals.sum() / clients)
            fractions = generator.dirichlet(np.full(len(takers), self.alpha))
            counts[number, takers] = cut(fractions, total)
        return counts
