"""Clients whose class proportions follow a Dirichlet distribution.

Source: Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019,
section 4: for each class, proportions over the K clients are drawn from Dir_K(alpha) and the
class's samples are divided accordingly. The draw is repeated until each client has `minimum`
samples, as in their published code.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from raysim.errors import DataError
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import Indices, ListedIndices
from raysim.samples.data import Partition, Split
from raysim.user_input.limits import Count
from raysim.workloads.partitions.checks import one_sample_each
from raysim.workloads.partitions.sizes import cut

REDRAWS = 500
"""Draws after which a partition is given up."""


class Dirichlet(Partition):
    """Divide each class over the clients by proportions drawn from Dir_K(alpha).

    Attributes:
        alpha: Concentration; small values give each client few classes.
        minimum: Samples that each client must have.
    """

    alpha: Annotated[float, Field(gt=0, le=1e6)] = 0.5
    minimum: Count = 1

    def split(self, data: Split, clients: int, seed: int) -> ListedIndices:
        """Assign every sample to one client.

        Raises:
            DataError: no draw gave every client `minimum` samples.
        """
        one_sample_each(data, clients)
        generator = stream(seed, "dirichlet")
        classes = np.unique(data.y)
        counts = self._counts(data, clients, generator)
        owners = np.empty(len(data), dtype=np.int64)
        for label, of_class in zip(classes, counts, strict=True):
            members = generator.permutation(np.flatnonzero(data.y == label))
            owners[members] = np.repeat(np.arange(clients), of_class)
        return ListedIndices.of_owners(owners, clients)

    def _counts(self, data: Split, clients: int, generator: np.random.Generator) -> Indices:
        """Draw counts [C, K] until each client has its minimum."""
        totals = np.unique(data.y, return_counts=True)[1]
        draws = REDRAWS if clients * self.minimum <= len(data) else 0
        for _ in range(draws):
            counts = self._draw(totals, clients, generator)
            if counts.sum(axis=0).min() >= self.minimum:
                return counts
        raise DataError(
            f"partition.alpha={self.alpha}, clients={clients}, partition.minimum={self.minimum}:"
            f" no division of {len(data)} samples gave every client its minimum in {draws} draws;"
            " raise alpha, or lower clients or minimum"
        )

    def _draw(self, totals: Indices, clients: int, generator: np.random.Generator) -> Indices:
        """Draw how many samples of each class, of `totals` [C], each client holds [C, K]."""
        fractions = generator.dirichlet(np.full(clients, self.alpha), size=len(totals))  # [C, K]
        return cut(fractions, totals[:, None])
