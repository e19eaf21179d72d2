"""Clients that hold classes of their own.

Source: Yao et al., Federated Learning with Additional Mechanisms on Clients to Reduce Communication
Costs, arXiv:1908.05891, 2019, section 4.2 (FedMMD): two clients hold five of ten classes each. The
paper does not say which; in the authors' public code one client holds the even digits, the other
the odd ones. Chandran et al. (see `color_skew`), section 4.3.2, give each client a single class.
"""

from __future__ import annotations

import numpy as np

from raysim.errors import DataError
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import ListedIndices
from raysim.samples.data import Partition, Split


class SplitClasses(Partition):
    """Deal whole classes to the clients in turns, equally many to each; every sample is used.

    Attributes:
        shuffle: Deal the classes in random order; false deals them in ascending order, whatever
            the seed.
    """

    shuffle: bool = False

    def split(self, data: Split, clients: int, seed: int) -> ListedIndices:
        """Assign each class, with all its samples, to one client.

        Raises:
            DataError: the classes cannot be dealt equally.
        """
        labels, of_sample = np.unique(data.y, return_inverse=True)
        if len(labels) % clients:
            raise DataError(
                f"clients={clients}: {len(labels)} classes cannot be dealt equally;"
                f" clients must divide {len(labels)}"
            )
        owners = np.arange(len(labels)) % clients
        if self.shuffle:
            owners = stream(seed, "split-classes").permutation(owners)
        return ListedIndices.of_owners(owners[of_sample], clients)
