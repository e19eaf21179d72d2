"""Clients that hold a fixed number of classes each.

Source: Chen, Bhardwaj and Marculescu, FedMAX: Mitigating Activation Divergence for Accurate and
Communication-Efficient Federated Learning, ECML PKDD 2020, section 4.3: each device is given data
of 20 of the 26 classes of FEMNIST*. Deviation: in the authors' public code devices draw pieces of a
class with replacement; here the clients that hold a class divide it, so nothing is held twice.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raysim.core.client_indices import ListedIndices
from raysim.core.data import Partition, Split
from raysim.core.errors import DataError
from raysim.core.seeds import stream
from raysim.core.user_input.limits import Count
from raysim.workloads.partitions.checks import one_sample_each


class Classes(Partition):
    """Give each client some classes at random; a class is divided equally among its holders.

    The numbers of holders of any two classes differ by at most one. Every sample is used, unless
    all clients together hold fewer classes than there are.

    Attributes:
        per_client: Classes that a client holds.
    """

    per_client: Count = 2

    def split(self, data: Split, clients: int, seed: int) -> ListedIndices:
        """Give each client samples of exactly `per_client` classes.

        Raises:
            DataError: there are fewer classes than that, or a class has too few samples.
        """
        one_sample_each(data, clients)
        generator = stream(seed, "classes")
        labels = np.unique(data.y)
        held = self._held(len(labels), clients, generator)
        owners = np.full(len(data), -1)
        for label, of_class in zip(labels, held.T, strict=True):
            holders = generator.permutation(np.flatnonzero(of_class))
            members = generator.permutation(np.flatnonzero(data.y == label))
            if len(holders) > len(members):
                raise DataError(
                    f"partition.per_client={self.per_client}, clients={clients}: class {label} has"
                    f" {len(members)} samples for {len(holders)} clients; lower one of the two"
                )
            if len(holders):
                owners[members] = np.resize(holders, len(members))  # in turns
        return ListedIndices.of_owners(owners, clients)

    def _held(
        self, classes: int, clients: int, generator: np.random.Generator
    ) -> npt.NDArray[np.bool_]:
        """Draw which classes each client holds [K, C]."""
        if self.per_client > classes:
            raise DataError(
                f"partition.per_client={self.per_client}: the dataset has {classes} classes;"
                " a client holds at most all of them"
            )
        held = np.zeros((clients, classes), dtype=np.bool_)
        holders = np.zeros(classes, dtype=np.int64)
        for client in range(clients):
            # The classes with the fewest holders so far, ties at random.
            chosen = np.lexsort([generator.random(classes), holders])[: self.per_client]
            held[client, chosen] = True
            holders[chosen] += 1
        return held
