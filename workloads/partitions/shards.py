"""Clients that hold a few shards of label-sorted data, hence few classes each.

Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017, section 3: MNIST is sorted by label and cut into 200 shards of 300 samples, and each
of 100 clients holds two.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import model_validator

from raysim.errors import DataError
from raysim.numbers.arrays import Integers
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import ListedIndices
from raysim.samples.data import Split
from raysim.user_input.limits import Count
from raysim.workloads.partitions.checks import one_sample_each
from raysim.workloads.partitions.sizes import Sized


class Shards(Sized):
    """Sort by label, cut into shards, and give each client some of them at random.

    Attributes:
        per_client: Shards that a client holds.
        size: Samples in a shard. Unset, the data is cut into exactly as many shards as the clients
            hold, whose sizes differ by at most one, and every sample is used. Set, the sorted data
            is cut into shards of this size, a shorter rest at its end is left out, and so are the
            shards that no client draws.
        sizes: If given, a client's shards have its size together, and `size` is unset.
    """

    per_client: Count = 2
    size: Count | None = None

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.size is not None and self.sizes is not None:
            raise ValueError(f"size={self.size}: must be none with partition.sizes={self.sizes}")
        return self

    def split(self, data: Split, clients: int, seed: int) -> ListedIndices:
        """Give each client `per_client` shards, none of them twice.

        Raises:
            DataError: there are fewer samples than clients, or than the shards asked for hold.
        """
        one_sample_each(data, clients)
        ordered = np.argsort(data.y, kind="stable")
        shards = self._cut(ordered, clients)
        drawn = stream(seed, "shards").permutation(len(shards))[: clients * self.per_client]
        if self.sizes is not None:
            sizes = self.client_sizes(len(data), clients, stream(seed, "sizes"))[:, None]
            rest = np.arange(self.per_client) < sizes % self.per_client
            of_shard = np.empty(len(shards), dtype=np.int64)
            of_shard[drawn] = (sizes // self.per_client + rest).ravel()
            shards = np.split(ordered, np.cumsum(of_shard)[:-1])
        return ListedIndices.of(
            [
                np.concatenate([shards[shard] for shard in held])
                for held in drawn.reshape(clients, self.per_client)
            ]
        )

    def _cut(self, ordered: Integers, clients: int) -> list[Integers]:
        wanted = clients * self.per_client
        if wanted > len(ordered):
            raise DataError(
                f"partition.per_client={self.per_client}: clients={clients} hold {wanted} shards;"
                f" the dataset has {len(ordered)} training samples"
            )
        if self.size is None:
            return np.array_split(ordered, wanted)
        if wanted * self.size > len(ordered):
            raise DataError(
                f"partition.size={self.size}: clients={clients} with"
                f" partition.per_client={self.per_client} need {wanted * self.size} samples;"
                f" the dataset has {len(ordered)} training samples"
            )
        whole = len(ordered) // self.size
        return list(ordered[: whole * self.size].reshape(whole, self.size))
