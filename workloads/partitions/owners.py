"""Client indices from one owner per sample."""

from __future__ import annotations

import numpy as np

from raysim.core.data import Indices, ListedIndices


def shares_of(owners: Indices, clients: int) -> ListedIndices:
    """Return the shares of K clients, each client's samples in ascending order.

    Args:
        owners: The client that holds each sample [N]; -1 for a sample that nobody holds.
        clients: Number of clients K.

    Raises:
        DataError: a client has no samples.
    """
    sizes = np.bincount(owners[owners >= 0], minlength=clients)
    held = np.argsort(owners, kind="stable")[len(owners) - sizes.sum() :]
    return ListedIndices.of(np.split(held, np.cumsum(sizes)[:-1]))
