"""Samples on which the global model is evaluated client by client.

They are chosen once, before the first round, and travel to the workers with the federation. Of a
large population a seeded sample of clients stands for all, so that evaluation costs no more than
its share of the samples.

Legend: n clients, N' samples of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raysim.core.client_test import client_test
from raysim.core.counts import class_counts
from raysim.core.data import ClientIndices, Indices
from raysim.core.errors import DataError, SettingsError
from raysim.core.holdout import TrainingIndices
from raysim.core.seeds import stream

EVALUATION_ROWS = 1000
"""Samples of a batch, which is what a worker is handed."""
MOST_CLIENTS = 5_000
"""Clients that are evaluated; of more, as many drawn by the seed."""


@dataclass(frozen=True)
class EvaluationSet:
    """Samples of some clients, one client's after another's.

    Attributes:
        held_out: Whether they are held-out training samples, or test samples.
        clients: The clients [n], ascending; each has at least one sample.
        rows: Indices of their samples [N'].
        offsets: Where each client's begin and end in `rows` [n+1].
        cuts: Where batches of whole clients begin and end in `clients`; a batch has at most
            EVALUATION_ROWS samples, or one client.
    """

    held_out: bool
    clients: Indices
    rows: Indices
    offsets: Indices
    cuts: Indices

    @classmethod
    def of(cls, held_out: bool, clients: Indices, parts: Sequence[Indices]) -> EvaluationSet:
        """Lay out clients [n] and the indices of each one's samples; leave out who has none."""
        sizes = np.array([len(part) for part in parts])
        offsets = np.concatenate([[0], np.cumsum(sizes[sizes > 0])])
        return cls(held_out, clients[sizes > 0], np.concatenate(parts), offsets, _cuts(offsets))

    @property
    def sizes(self) -> Indices:
        """Samples per client [n]."""
        return np.diff(self.offsets)

    @property
    def batch_sizes(self) -> Indices:
        """Samples per batch."""
        return np.diff(self.offsets[self.cuts])

    def of_client(self, position: int) -> Indices:
        """Return the indices of one client's samples."""
        return self.rows[self.offsets[position] : self.offsets[position + 1]]


def held_out_set(shares: TrainingIndices) -> EvaluationSet:
    """Return the samples that clients hold out.

    Raises:
        SettingsError: there are none.
    """
    chosen = _chosen(len(shares.sizes), shares.seed)
    samples = EvaluationSet.of(True, chosen, [_held_out(shares, k) for k in chosen.tolist()])
    if not len(samples.rows):
        raise SettingsError(
            f"evaluation.holdout={shares.holdout}: no client has two samples or more, so none can"
            " be held out; use evaluation.holdout=0"
        )
    return samples


def _held_out(shares: TrainingIndices, client: int) -> Indices:
    rows = shares.whole[client]
    return rows[shares.parts(client, len(rows))[1]]


def client_test_set(
    shares: ClientIndices, train: Indices, test: Indices, seed: int
) -> EvaluationSet:
    """Return each client's own test samples, drawn in the class proportions of all that it holds.

    Args:
        shares: Who holds which training samples.
        train: The labels of the training set.
        test: The labels of the test set.
        seed: The run's seed.

    Raises:
        DataError: a client trains on a class of which the test set has no sample.
    """
    chosen = _chosen(len(shares.sizes), seed)
    classes = 1 + int(max(train.max(), test.max()))
    counts = class_counts(shares, train, classes, chosen)
    try:
        own = client_test(counts, test, len(test) / len(train), seed)
    except DataError as error:
        raise DataError(f"evaluation.clients=true: {error}") from error
    return EvaluationSet.of(False, chosen, [own[position] for position in range(len(chosen))])


def _chosen(clients: int, seed: int) -> Indices:
    """Return the clients that are evaluated, ascending."""
    if clients <= MOST_CLIENTS:
        return np.arange(clients)
    generator = stream(seed, "evaluated-clients")
    return np.sort(generator.choice(clients, MOST_CLIENTS, replace=False, shuffle=False))


def _cuts(offsets: Indices) -> Indices:
    """Return where batches of whole clients begin and end, for clients cut at offsets [n+1]."""
    cuts, n = [0], len(offsets) - 1
    while cuts[-1] < n:
        room = offsets[cuts[-1]] + EVALUATION_ROWS
        cuts.append(max(int(np.searchsorted(offsets, room, side="right")) - 1, cuts[-1] + 1))
    return np.array(cuts)
