"""Root samples: samples of the server's own, taken out of the clients' training.

Legend: R root samples.
"""

from __future__ import annotations

import numpy as np

from raysim.errors import SettingsError
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import ClientIndices, Indices, ListedIndices
from raysim.samples.participants import Participants


def without_root(
    indices: ClientIndices, count: int, seed: int, participants: Participants
) -> tuple[ClientIndices, Indices]:
    """Draw R root samples by the seed; return the client indices without them, and them [R].

    The root samples are ascending, and come from participants' samples, as nobody trains on the
    samples of new clients. If several clients hold a root sample, all of them lose it.

    Raises:
        SettingsError: a client would have no sample left, or the partition draws clients' samples
            on demand.
    """
    setting = f"aggregation.root={count}"
    if not isinstance(indices, ListedIndices):
        raise SettingsError(
            f"{setting}: the partition draws a client's samples when it trains, or has them share"
            " some: choose another partition, or fewer clients"
        )
    by_client = [indices[client] for client in range(len(indices.sizes))]
    held = np.unique(np.concatenate([by_client[client] for client in participants.listed]))
    if count >= len(held):
        raise SettingsError(
            f"{setting}: must be below the {len(held)} samples of clients that take part"
        )
    root = np.sort(stream(seed, "root-samples").choice(held, count, replace=False))
    kept = ListedIndices.of_some([each[~np.isin(each, root)] for each in by_client])
    if len(empty := np.flatnonzero(kept.sizes == 0)):
        raise SettingsError(f"{setting}: leaves client {empty[0]} no samples; choose fewer")
    return kept, root
