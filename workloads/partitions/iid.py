"""Independent and identically distributed clients.

Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017, section 3: "the data is shuffled, and then partitioned" into clients of equal size.
"""

from __future__ import annotations

from raysim.numbers.seeds import stream
from raysim.samples.client_indices import ListedIndices
from raysim.samples.data import Split
from raysim.workloads.partitions.checks import one_sample_each
from raysim.workloads.partitions.sizes import Sized


class Iid(Sized):
    """Shuffle all samples and cut them into K parts, whose sizes are equal or of `sizes`."""

    def split(self, data: Split, clients: int, seed: int) -> ListedIndices:
        """Assign every sample to one client.

        Raises:
            DataError: there are more clients than samples.
        """
        one_sample_each(data, clients)
        shuffled = stream(seed, "iid").permutation(len(data))
        return self.pieces(shuffled, clients, seed)
