"""Cut of a client's own samples into samples for its training and samples for its tests.

A cut depends on the seed, the client and its samples alone, so it is made on demand.

Legend: N samples, K clients, n samples of a client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from raysim.numbers.arrays import Array
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import (
    ClientIndices,
    DrawnIndices,
    Indices,
    SharingIndices,
    distinct_sizes,
    own_indices,
)


@dataclass(frozen=True)
class LocalCut:
    """Rule that cuts each client's samples.

    Of a client's n samples round(f*n) become test samples (half to even): at least one and at most
    n - 1 if n > 1, none otherwise. By class, a class with c of the n samples has t*c/n of the t
    test samples, rounded down; the classes with the largest remainders have one more each, and
    equal remainders are decided by lot.

    Attributes:
        fraction: The fraction f.
        seed: The run's seed.
        classes: The class number of each sample of the data [N]; None cuts at random.
    """

    fraction: float
    seed: int
    classes: Array | None = None

    def test_sizes(self, sizes: Indices) -> Indices:
        """Return the number of test samples [n] of clients with `sizes` samples [n]."""
        wanted = np.maximum(np.rint(self.fraction * sizes), 1)
        sizes_of_tests: Indices = np.clip(wanted, 0, np.maximum(sizes - 1, 0)).astype(np.int64)
        return sizes_of_tests

    def divide(self, client: int, indices: Indices) -> tuple[Indices, Indices]:
        """Return a client's training and test samples, in the order of its `indices` [n]."""
        n = len(indices)
        count = int(self.test_sizes(np.array([n]))[0])
        generator = stream(self.seed, "local-test", client)
        order = generator.permutation(n)
        if self.classes is not None:
            order = _by_class(order, self.classes[indices[order]], count, generator)
        tested = np.zeros(n, dtype=bool)
        tested[order[:count]] = True
        return indices[~tested], indices[tested]


def _by_class(order: Indices, labels: Array, count: int, generator: np.random.Generator) -> Indices:
    """Reorder positions [n] so that the first `count` have each class's share.

    Args:
        order: The positions in a random order.
        labels: Their class numbers.
        count: Number of test samples.
        generator: Source of the lots between equal remainders.
    """
    _, of_class, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    shares, rests = np.divmod(count * sizes, len(order))
    lots = generator.permutation(len(sizes))
    shares[np.lexsort((lots, -rests))[: count - shares.sum()]] += 1
    grouped = np.argsort(of_class, kind="stable")
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    first = rank < np.repeat(shares, sizes)
    ordered: Indices = order[np.concatenate([grouped[first], grouped[~first]])]
    return ordered


@dataclass(frozen=True)
class CutIndices:
    """Client indices without the clients' own test samples.

    Attributes:
        whole: All samples of each client.
        cut: The rule that takes test samples out of them.
    """

    whole: ClientIndices
    cut: LocalCut

    @property
    def sizes(self) -> Indices:
        """Samples per client [K] that are left."""
        sizes = distinct_sizes(self.whole.sizes)
        return np.broadcast_to(sizes - self.cut.test_sizes(sizes), self.whole.sizes.shape)

    def __getitem__(self, client: int) -> Indices:
        return self.cut.divide(client, self.whole[client])[0]

    @property
    def tests(self) -> DrawnIndices:
        """The test samples of each client; a client with fewer than two samples has none."""
        sizes = self.cut.test_sizes(distinct_sizes(self.whole.sizes))
        return DrawnIndices(len(self.whole.sizes), sizes, partial(_tests, self))


def _tests(indices: CutIndices, client: int) -> Indices:
    return indices.cut.divide(client, indices.whole[client])[1]


def with_cut(indices: ClientIndices, cut: LocalCut) -> tuple[ClientIndices, ClientIndices]:
    """Return client indices without each client's test samples, and the test samples' indices.

    Samples that all share are not cut.
    """
    cut_indices = CutIndices(own_indices(indices), cut)
    kept = replace(indices, own=cut_indices) if isinstance(indices, SharingIndices) else cut_indices
    return kept, cut_indices.tests


def have_common_samples(indices: ClientIndices, samples: int) -> bool:
    """Return whether a sample, of N in all, is there twice: with two clients, or with one.

    Samples that are sent to all are left out. Costs at most N draws: more samples than that have
    one twice.
    """
    of_clients = own_indices(indices)
    seen = np.zeros(samples, dtype=bool)
    if int(of_clients.sizes.sum()) > samples:
        return True
    for client in range(len(of_clients.sizes)):
        rows = of_clients[client]
        if seen[rows].any() or len(np.unique(rows)) < len(rows):
            return True
        seen[rows] = True
    return False


def without_cut(indices: ClientIndices) -> ClientIndices:
    """Return client indices with the test samples that were cut out of them."""
    of_clients = own_indices(indices)
    if not isinstance(of_clients, CutIndices):
        return indices
    return (
        replace(indices, own=of_clients.whole)
        if isinstance(indices, SharingIndices)
        else of_clients.whole
    )
