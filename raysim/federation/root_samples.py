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
    """Return client indices without R samples drawn by the seed, and these, ascending [R].

    They are drawn from those of the participants, as nobody trains on what new clients hold. A
    sample that several clients hold leaves all of them.

    Raises:
        SettingsError: a client would have none left, or the clients' samples are drawn on demand.
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
