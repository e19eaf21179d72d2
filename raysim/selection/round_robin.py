"""Selection in turn: clients take part by their numbers, the first after the last.

Source: Yang, Liu, Quek and Poor, "Scheduling Policies for Federated Learning in Wireless Networks",
IEEE Transactions on Communications, 2020, round robin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from raysim.api.selection import Results, Sampling, Selection
from raysim.api.state import State


class RoundRobin(Selection):
    """Selection of clients in turn: all take part before one does again.

    Clients that are away miss their turn if the server does not wait for them.
    """

    def init(self, clients: int) -> State:
        """Start with client 0."""
        return {"next": np.array(0)}

    def select(self, sampling: Sampling) -> list[int]:
        """Return the next clients."""
        clients = sampling.candidates
        first = np.searchsorted(clients, int(sampling.state["next"]))
        chosen: list[int] = np.roll(clients, -first)[: sampling.wanted].tolist()
        return chosen

    def update(
        self, sampling: Sampling, selected: Sequence[int], results: Results
    ) -> tuple[State, Mapping[str, float]]:
        """Go on after the last client, whether its result counts or not."""
        return {"next": np.array((selected[-1] + 1) % sampling.clients)}, {}
