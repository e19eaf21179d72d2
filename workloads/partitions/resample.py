"""Populations larger than the data: clients draw from one pool that they share.

Each client's samples depend on the seed and its own number alone and are drawn when asked for, so
a population costs nothing until its clients train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from raysim.core.data import Indices, Partition, Split
from raysim.core.errors import DataError
from raysim.core.seeds import stream


@dataclass(frozen=True)
class ResampledIndices:
    """Indices drawn on demand: `samples` of a pool of `pool` for each of `clients` clients."""

    pool: int
    clients: int
    samples: int
    seed: int

    @property
    def sizes(self) -> Indices:
        """Samples per client [K], one number seen K times."""
        return np.broadcast_to(np.int64(self.samples), self.clients)

    def __getitem__(self, client: int) -> Indices:
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client}: must be in 0..{self.clients - 1}")
        generator = stream(self.seed, "resample", client)
        return generator.choice(self.pool, size=self.samples, replace=False)


class Resample(Partition):
    """Each client draws samples from the whole data, without replacement within the client.

    Attributes:
        samples: Samples per client.
    """

    samples: Annotated[int, Field(ge=1)] = 60

    def split(self, data: Split, clients: int, seed: int) -> ResampledIndices:
        """Describe the population; nothing is drawn yet.

        Raises:
            DataError: a client would need more samples than there are.
        """
        if self.samples > len(data):
            raise DataError(
                f"partition.samples={self.samples}: the dataset has {len(data)} training samples;"
                " a client draws each at most once"
            )
        return ResampledIndices(len(data), clients, self.samples, seed)
