"""Clients that hold consecutive pieces of data sorted by metadata.

Source: Uddin et al., Mutual Information Driven Federated Learning, IEEE TPDS 2021 (MIFL), section
5.1, whose MIMIC-III data is sorted by age group and gender as in Huang et al., LoAdaBoost, PLOS ONE
2020, and cut into equal pieces.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from raysim.numbers.seeds import stream
from raysim.samples.client_indices import ListedIndices
from raysim.samples.data import Split
from raysim.workloads.partitions.checks import column, one_sample_each
from raysim.workloads.partitions.sizes import Sized


class SortedBy(Sized):
    """Sort by columns, samples of equal values at random, and cut into a piece for each client.

    Attributes:
        columns: Columns to sort by, the first one first.
    """

    columns: Annotated[tuple[str, ...], Field(min_length=1)] = ("age_group", "gender")

    def split(self, data: Split, clients: int, seed: int) -> ListedIndices:
        """Assign every sample to one client.

        Raises:
            DataError: there is no such column, or there are more clients than samples.
        """
        one_sample_each(data, clients)
        columns = [column(data, "columns", name) for name in self.columns]
        ranks = [np.unique(values, return_inverse=True)[1] for values in columns]
        ties = stream(seed, "sorted-by").permutation(len(data))
        order = np.lexsort([ties, *reversed(ranks)])  # the last is the first to sort by
        return self.pieces(order, clients, seed)
