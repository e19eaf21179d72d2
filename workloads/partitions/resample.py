"""Populations larger than the data: clients draw samples from one pool.

Each client's samples depend on the seed and its own number alone and are drawn when asked for, so
a population costs nothing until its clients train.
"""

from __future__ import annotations

from functools import partial

from raysim.errors import DataError
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import DrawnIndices, Indices
from raysim.samples.data import Partition, Split
from raysim.user_input.limits import Count


class Resample(Partition):
    """Draw each client's samples from the whole data, without replacement within the client.

    Attributes:
        samples: Samples per client.
    """

    samples: Count = 60

    def split(self, data: Split, clients: int, seed: int) -> DrawnIndices:
        """Describe the population; nothing is drawn yet.

        Raises:
            DataError: a client would need more samples than there are.
        """
        if self.samples > len(data):
            raise DataError(
                f"partition.samples={self.samples}: the dataset has {len(data)} training samples;"
                " a client draws each at most once"
            )
        return DrawnIndices(clients, self.samples, partial(_draw, len(data), self.samples, seed))


def _draw(pool: int, samples: int, seed: int, client: int) -> Indices:
    """Draw one client's samples from the pool."""
    return stream(seed, "resample", client).choice(pool, size=samples, replace=False)
