"""How many samples of each class clients hold."""

from __future__ import annotations

import numpy as np

from raysim.core.data import ClientIndices, Indices


def class_counts(shares: ClientIndices, labels: Indices, classes: int, clients: Indices) -> Indices:
    """Return the samples of each of C classes that clients hold [n, C].

    Args:
        shares: Who holds which samples.
        labels: The samples' labels [N], below C.
        classes: Number of classes C.
        clients: The clients asked about [n].
    """
    counts = [np.bincount(labels[shares[k]], minlength=classes) for k in clients.tolist()]
    return np.stack(counts)
