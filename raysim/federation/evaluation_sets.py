"""Evaluation sets: samples for evaluating models client by client.

They are chosen once, before the first round, and travel to the workers with the federation. In a
large population, a seeded sample of clients stands for all, which bounds the cost of evaluation.

Legend: n clients, N' samples of these clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from torch import Tensor

from raysim.config import Settings
from raysim.errors import DataError, SettingsError
from raysim.federation.federation import Federation, LocalTest, open_samples
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import (
    ClientIndices,
    Holdout,
    Indices,
    ListedIndices,
    class_counts,
    client_test_indices,
    own_indices,
)

EVALUATION_ROWS = 1000
"""Most samples of an evaluated batch, a worker's unit of work."""
MOST_CLIENTS = 5_000
"""Most clients to evaluate; from a larger population, this number is drawn by the seed."""
SplitName = Literal["train", "held_out", "test", "triggered", "local", "cut"]


@dataclass(frozen=True)
class EvaluationSet:
    """Samples of some clients, cut into batches of whole clients.

    Attributes:
        split: Origin of the samples: clients' training samples ("train") or held-out samples
            ("held_out"); test samples ("test"), test samples with an attack's trigger
            ("triggered"), or samples of `LocalTest` ("local", "cut").
        clients: The clients [n], ascending; each has at least one sample.
        samples: Per client, by position in `clients`, the indices of its samples.
        cuts: Positions in `clients` of the batches' bounds; a batch has at most EVALUATION_ROWS
            samples, or one client.
        change: Changes the inputs of the test set, for example adds an attack's trigger.
    """

    split: SplitName
    clients: Indices
    samples: ListedIndices
    cuts: Indices
    change: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def of(cls, split: SplitName, clients: Indices, per_client: Sequence[Indices]) -> EvaluationSet:
        """Cut the samples of clients [n] into batches; leave out clients without samples."""
        filled = np.array([len(indices) > 0 for indices in per_client], dtype=bool)
        samples = ListedIndices.of([indices for indices in per_client if len(indices)])
        return cls(split, clients[filled], samples, _cuts(samples.offsets))

    def first(self, most: int) -> EvaluationSet:
        """Return the set of its first client alone, with at most so many samples."""
        first = EvaluationSet.of(self.split, self.clients[:1], [self.samples[0][:most]])
        return replace(first, change=self.change)

    @property
    def batch_sizes(self) -> Indices:
        """Samples per batch."""
        return np.diff(self.samples.offsets[self.cuts])


def held_out_set(
    client_indices: ClientIndices, holdout: Holdout, clients: Indices | None = None
) -> EvaluationSet:
    """Return the held-out samples of clients.

    Args:
        client_indices: The samples of all clients.
        holdout: Divides a client's samples.
        clients: The clients; None: all.

    Raises:
        SettingsError: none of them holds out a sample.
    """
    chosen = _of(clients, len(client_indices.sizes), holdout.seed)
    per_client = [_divided(client_indices, holdout, k)[1] for k in chosen.tolist()]
    if not any(map(len, per_client)):
        raise SettingsError(
            f"evaluation.holdout={holdout.fraction}: no client has two samples or more, so none can"
            " be held out; use evaluation.holdout=0"
        )
    return EvaluationSet.of("held_out", chosen, per_client)


def training_set(
    client_indices: ClientIndices, holdout: Holdout, clients: Indices | None = None
) -> EvaluationSet:
    """Return the samples that clients, or all of them, train on."""
    chosen = _of(clients, len(client_indices.sizes), holdout.seed)
    per_client = [_divided(client_indices, holdout, k)[0] for k in chosen.tolist()]
    return EvaluationSet.of("train", chosen, per_client)


def _divided(
    client_indices: ClientIndices, holdout: Holdout, client: int
) -> tuple[Indices, Indices]:
    """Return the indices of a client's training samples, and of its held-out samples."""
    indices = client_indices[client]
    kept, held_out = holdout.divide(client, len(indices))
    return indices[kept], indices[held_out]


def local_test_set(
    local_test: LocalTest, seed: int, clients: Indices | None = None
) -> EvaluationSet:
    """Return own test samples of clients, or of all that have some."""
    indices = local_test.indices
    filled = np.flatnonzero(indices.sizes)
    if clients is not None:
        filled = np.intersect1d(filled, clients, assume_unique=True)
    chosen = filled[_chosen(len(filled), seed)]
    per_client = [indices[client] for client in chosen.tolist()]
    return EvaluationSet.of(local_test.split, chosen, per_client)


def triggered_set(samples: int, change: Callable[[Tensor], Tensor]) -> EvaluationSet:
    """Return the test samples, to be evaluated with an attack's trigger, in the test set's batches.

    Args:
        samples: Their number.
        change: Adds the trigger to inputs.
    """
    cuts = range(0, samples, EVALUATION_ROWS)
    batches = [np.arange(at, min(at + EVALUATION_ROWS, samples)) for at in cuts]
    evaluation_set = EvaluationSet.of("triggered", np.arange(len(batches)), batches)
    return replace(evaluation_set, change=change)


def client_test_set(federation: Federation, settings: Settings) -> EvaluationSet:
    """Return test samples of each client for `client_accuracy_...`.

    They are the client's own samples of the test set. They are drawn from it if no client has any,
    or by `evaluation.test_samples=all`. Clients that are kept out of training have none.

    Args:
        federation: The samples and client indices.
        settings: The run's settings.

    Raises:
        DataError: they cannot be drawn; see `drawn_test_set`.
    """
    local_test, seed, clients = federation.local_test, settings.seed, settings.participants.chosen
    if local_test and local_test.split == "test" and settings.evaluation.test_samples == "clients":
        return local_test_set(local_test, seed, clients)
    train, test = open_samples(federation.train).y, federation.test_targets
    return drawn_test_set(federation.client_indices, train, test, seed, clients)


def drawn_test_set(
    client_indices: ClientIndices,
    train: Indices,
    test: Indices,
    seed: int,
    clients: Indices | None = None,
) -> EvaluationSet:
    """Return test samples for each client, drawn in the class proportions of its own samples.

    Args:
        client_indices: The training samples that each client holds.
        train: The labels of the training set.
        test: The labels of the test set.
        seed: The run's seed.
        clients: The clients; None: all.

    Raises:
        DataError: a client trains on a class without a sample in the test set.
    """
    chosen = _of(clients, len(client_indices.sizes), seed)
    classes = 1 + int(max(train.max(), test.max()))
    counts = class_counts(own_indices(client_indices), train, classes, chosen)
    try:
        drawn = client_test_indices(counts, test, len(test) / len(train), seed)
    except DataError as error:
        raise DataError(f"evaluation.clients=true: {error}") from error
    return EvaluationSet.of("test", chosen, [drawn[position] for position in range(len(chosen))])


def _of(clients: Indices | None, count: int, seed: int) -> Indices:
    """Return the clients to evaluate, of some or of all `count`, ascending."""
    return _chosen(count, seed) if clients is None else clients[_chosen(len(clients), seed)]


def _chosen(clients: int, seed: int) -> Indices:
    """Return the clients to evaluate, ascending."""
    if clients <= MOST_CLIENTS:
        return np.arange(clients)
    generator = stream(seed, "evaluated-clients")
    return np.sort(generator.choice(clients, MOST_CLIENTS, replace=False, shuffle=False))


def _cuts(offsets: Indices) -> Indices:
    """Return the bounds of batches of whole clients; their samples begin at offsets [n+1]."""
    cuts, n = [0], len(offsets) - 1
    while cuts[-1] < n:
        room = offsets[cuts[-1]] + EVALUATION_ROWS
        cuts.append(max(int(np.searchsorted(offsets, room, side="right")) - 1, cuts[-1] + 1))
    return np.array(cuts)
