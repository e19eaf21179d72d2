"""Client indices: the samples that each client holds, trains on, and is evaluated on.

Draws depend on the seed and the client alone, so they are made on demand, and a population costs
nothing until its clients train.

Legend: N samples, K clients, C classes, n clients or samples of a client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from raysim.errors import DataError, visible
from raysim.numbers.arrays import Array, Integers
from raysim.numbers.seeds import stream

Indices = Integers
MOST_SHOWN = 60
"""Most letters of a client's name that are shown."""


class ClientIndices(Protocol):
    """Samples of clients: `sizes` [K] and, per client, the indices of its samples."""

    @property
    def sizes(self) -> Indices:
        """Samples per client [K]; a broadcast view if all clients have the same size."""
        ...

    def __getitem__(self, client: int) -> Indices:
        """Return the indices of one client's samples."""
        ...


@dataclass(frozen=True)
class ListedIndices:
    """Client indices held as one list of indices [N'] cut at `offsets` [K+1]."""

    indices: Indices
    offsets: Indices

    @classmethod
    def of(cls, per_client: Sequence[Array]) -> ListedIndices:
        """Build client indices from one array of sample indices per client.

        Raises:
            DataError: a client has no samples, or indices that are no whole numbers.
        """
        indices = cls.of_some(per_client)
        if len(empty := np.flatnonzero(indices.sizes == 0)):
            raise DataError(
                f"client {empty[0]} has no samples ({len(empty)} of {len(per_client)} clients have"
                " none): use fewer clients or another partition"
            )
        return indices

    @classmethod
    def of_some(cls, per_client: Sequence[Array]) -> ListedIndices:
        """Build client indices from one array of sample indices per client; some may be empty.

        Raises:
            DataError: a client's indices are no whole numbers.
        """
        held = [
            as_indices(f"client {client}", sample_indices)
            for client, sample_indices in enumerate(per_client)
        ]
        offsets = np.cumsum([0, *map(len, held)], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, dtype=np.int64), *held]), offsets)

    @classmethod
    def of_owners(cls, owners: Indices, clients: int) -> ListedIndices:
        """Build the indices of K clients, each client's in ascending order.

        Args:
            owners: The client that holds each sample [N]; -1 for an unused sample.
            clients: Number of clients K.

        Raises:
            DataError: a client has no samples.
        """
        sizes = np.bincount(owners[owners >= 0], minlength=clients)
        held = np.argsort(owners, kind="stable")[len(owners) - sizes.sum() :]
        return cls.of(np.split(held, np.cumsum(sizes)[:-1]))

    @property
    def sizes(self) -> Indices:
        """Samples per client [K]."""
        return np.diff(self.offsets)

    def __getitem__(self, client: int) -> Indices:
        return self.indices[self.offsets[client] : self.offsets[client + 1]]


@dataclass(frozen=True)
class DrawnIndices:
    """Client indices that are drawn on demand.

    Attributes:
        clients: Number of clients K.
        size: Samples per client [K], or one number [] or [1] for all clients.
        draw: `draw(client)` returns the indices of one client's samples.
    """

    clients: int
    size: int | Indices
    draw: Callable[[int], Indices]

    @property
    def sizes(self) -> Indices:
        """Samples per client [K]; a broadcast view of one number for all clients."""
        return np.broadcast_to(np.asarray(self.size, dtype=np.int64), self.clients)

    def __getitem__(self, client: int) -> Indices:
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client}: must be in 0..{self.clients - 1}")
        return self.draw(client)


@dataclass(frozen=True)
class SharingIndices:
    """Client indices: each client's own samples, then its part of the shared samples.

    Attributes:
        own: The clients' own samples.
        shared: The shared samples [G]; no client owns any of them.
        size: Number of shared samples of a client, drawn for each; may be all G.
        seed: The run's seed.
    """

    own: ClientIndices
    shared: Indices
    size: int
    seed: int

    @property
    def sizes(self) -> Indices:
        """Samples per client [K], shared ones among them."""
        sizes = self.own.sizes
        return np.broadcast_to(distinct_sizes(sizes) + self.size, sizes.shape)

    def __getitem__(self, client: int) -> Indices:
        own_part, part = self.own[client], self.shared
        if self.size < len(part):
            generator = stream(self.seed, "shared", client)
            part = part[np.sort(generator.choice(len(part), self.size, False, shuffle=False))]
        return np.concatenate([own_part, part])


def own_indices(indices: ClientIndices) -> ClientIndices:
    """Return client indices without shared samples."""
    return indices.own if isinstance(indices, SharingIndices) else indices


def shared_size(indices: ClientIndices) -> int:
    """Return the number of shared samples that each client holds."""
    return indices.size if isinstance(indices, SharingIndices) else 0


def renumbered(indices: ClientIndices, numbers: Indices) -> ClientIndices:
    """Return the `numbers` [N] of samples in place of client indices into them."""
    if isinstance(indices, ListedIndices):
        return ListedIndices(numbers[indices.indices], indices.offsets)
    draw = partial(_draw_renumbered, indices, numbers)
    return DrawnIndices(len(indices.sizes), distinct_sizes(indices.sizes), draw)


def _draw_renumbered(indices: ClientIndices, numbers: Indices, client: int) -> Indices:
    return numbers[indices[client]]


def as_indices(name: str, samples: Any) -> Indices:
    """Return a client's samples as indices [n].

    Args:
        name: Name of their owner in errors: `client 3`.
        samples: An array or a list of whole numbers; these may be floats.

    Raises:
        DataError: the samples are no whole numbers, for instance a mask or names.
    """
    try:
        values = np.asarray(samples)
    except ValueError as error:  # nested lists differ in length
        raise DataError(f"{name}: samples {type(samples).__name__}: {error}") from error
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        shape = [*values.shape]
        raise DataError(f"{name}: samples {values.dtype}{shape}; must be whole numbers [n]")
    if values.dtype.kind == "f":
        wrong = values[(np.rint(values) != values) | (abs(values) >= 2.0**63)]
        if len(wrong):
            raise DataError(f"{name}: sample {wrong[0]} is no whole number")
    return values.astype(np.int64, copy=False)


def named(client: int, name: str) -> str:
    """Return a client's number and, if it has one, its name, for messages: `2 (hospital_b)`."""
    return f"{client} ({visible(name, MOST_SHOWN)})" if name else str(client)


def owner_of(indices: ListedIndices, sample: int) -> tuple[int, int]:
    """Return the first client that holds a sample, and the position among its samples."""
    at = int(np.flatnonzero(indices.indices == sample)[0])
    client = int(np.searchsorted(indices.offsets, at, side="right")) - 1
    return client, at - int(indices.offsets[client])


def held_problem(indices: ClientIndices, clients: int, samples: int) -> str | None:
    """Return the problem of client indices for K clients and N samples; None if they are valid.

    Indices drawn on demand (`CheckedIndices`) are drawn twice, for the first and the last client.
    """
    sizes: Any = indices.sizes
    if not isinstance(sizes, np.ndarray) or sizes.dtype.kind not in "iu" or sizes.ndim != 1:
        return f"sizes {sizes!r}; must be an array of whole numbers [K]"
    if len(sizes) != clients:
        return f"samples of {len(sizes)} clients; clients={clients}"
    if len(empty := np.flatnonzero(distinct_sizes(sizes) < 1)):
        return f"no samples for client {empty[0]}"
    if not isinstance(indices, ListedIndices):
        again = [client for client in (0, clients - 1) if _differs(indices, client)]
        return f"other samples of client {again[0]} when it is asked again" if again else None
    held = indices.indices
    if len(wrong := held[(held < 0) | (held >= samples)]):
        return f"sample {wrong[0]}; the data has samples 0 to {samples - 1}"
    return None


def _differs(indices: ClientIndices, client: int) -> bool:
    return not np.array_equal(indices[client], indices[client])


def limited(whole: ClientIndices, limit: int, seed: int) -> ClientIndices:
    """Return client indices with at most `limit` samples per client, in their order."""
    clients, draw = len(whole.sizes), partial(_draw_limited, whole, limit, seed)
    if isinstance(whole, ListedIndices):
        return ListedIndices.of([draw(client) for client in range(clients)])
    return DrawnIndices(clients, np.minimum(distinct_sizes(whole.sizes), limit), draw)


@dataclass(frozen=True)
class Holdout:
    """Rule that divides each client's samples into training samples and held-out samples.

    Of n samples round(h*n) are held out (half to even), at least one if h > 0 and n > 1, and never
    all of them. If clients draw from one pool, others may train on a client's held-out samples.

    Attributes:
        fraction: The held-out fraction h.
        seed: The run's seed.
        shared: Number of samples, the last of each client, that all share: none is held out, nor
            counted in n.
    """

    fraction: float = 0.0
    seed: int = 0
    shared: int = 0

    def training_sizes(self, sizes: Indices) -> Indices:
        """Return the number of training samples [K] of clients with `sizes` samples [K]."""
        distinct = distinct_sizes(sizes)
        return np.broadcast_to(distinct - self._held_out(distinct), sizes.shape)

    def divide(self, client: int, n: int) -> tuple[Indices, Indices]:
        """Return the positions of a client's training and held-out samples among n, ascending."""
        count = int(self._held_out(np.array([n]))[0])
        held_out = np.zeros(n, dtype=bool)
        generator, own_size = stream(self.seed, "holdout", client), n - self.shared
        held_out[generator.choice(own_size, count, replace=False, shuffle=False)] = True
        return np.flatnonzero(~held_out), np.flatnonzero(held_out)

    def _held_out(self, sizes: Indices) -> Indices:
        """Return the number of held-out samples [n] of clients with `sizes` samples [n]."""
        own_sizes = sizes - self.shared
        wanted = np.maximum(np.rint(self.fraction * own_sizes), 1 if self.fraction else 0)
        held_out: Indices = np.minimum(wanted, own_sizes - 1).astype(np.int64)
        return held_out


NO_HOLDOUT = Holdout()


def class_counts(
    client_indices: ClientIndices, labels: Indices, classes: int, clients: Indices
) -> Indices:
    """Return the number of samples of each client and class [n, C].

    Args:
        client_indices: The samples of all clients.
        labels: The samples' class numbers [N], below C.
        classes: Number of classes C.
        clients: The clients to count [n].

    Raises:
        DataError: the labels are not class numbers below C.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"targets {labels.dtype}{[*labels.shape]}: are not class numbers to count")
    if len(wrong := labels[(labels < 0) | (labels >= classes)]):
        raise DataError(f"label {wrong[0]}: must be a class number from 0 to {classes - 1}")
    return np.stack(
        [np.bincount(labels[client_indices[k]], minlength=classes) for k in clients.tolist()]
    )


def client_test_indices(
    train_counts: Indices, test_labels: Indices, ratio: float, seed: int
) -> ClientIndices:
    """Draw test samples for K clients, each in the class proportions of its training samples.

    A client of N samples (`train_counts` [K, C]) gets round(ratio*N) test samples, at least one, at
    most as many as its classes allow without a sample twice, rounded by largest remainder. `ratio`
    is mostly the size of the test set (`test_labels`) divided by the size of the training set.
    Clients may share test samples.

    Raises:
        DataError: a client trains on a class without a sample in the test set.
    """
    of_class = [np.flatnonzero(test_labels == c) for c in range(train_counts.shape[1])]  # [C]
    available = np.array([len(members) for members in of_class])  # [C]
    if len(lacking := np.flatnonzero(train_counts.any(axis=0) & (available == 0))):
        raise DataError(f"class {lacking[0]}: clients train on it, but the test set lacks it")
    held = train_counts.sum(axis=1, keepdims=True)  # [K, 1]
    max_sizes = np.where(
        train_counts, available * held // np.maximum(train_counts, 1), len(test_labels)
    )
    sizes = np.clip(np.rint(ratio * held), 1, max_sizes.min(axis=1, keepdims=True)).astype(np.int64)
    counts, rests = np.divmod(sizes * train_counts, held)
    ranks = np.argsort(np.argsort(-rests, axis=1, kind="stable"), axis=1)
    counts += ranks < sizes - counts.sum(axis=1, keepdims=True)
    draw = partial(_draw_of_classes, of_class, counts, seed)
    return DrawnIndices(len(counts), counts.sum(axis=1), draw)


def _draw_limited(whole: ClientIndices, limit: int, seed: int, client: int) -> Indices:
    """Draw at most `limit` of a client's indices, in their order."""
    indices = whole[client]
    if len(indices) <= limit:
        return indices
    generator = stream(seed, "limit", client)
    chosen = generator.choice(len(indices), limit, replace=False, shuffle=False)
    return indices[np.sort(chosen)]


def _draw_of_classes(
    of_class: Sequence[Indices], counts: Indices, seed: int, client: int
) -> Indices:
    """Draw indices of each class [C], in the numbers of `counts` [K, C] for a client."""
    generator = stream(seed, "client-test", client)
    wanted = zip(of_class, counts[client], strict=True)
    return np.concatenate(
        [generator.choice(class_indices, n, replace=False) for class_indices, n in wanted]
    )


def distinct_sizes(sizes: Indices) -> Indices:
    """Return sizes [K], or [1] if one number is broadcast to all clients."""
    return sizes[:1] if sizes.strides == (0,) else sizes
