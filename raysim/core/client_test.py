"""Each client's own test share, in its class proportions, for client-side accuracy.

It is drawn when asked for, by seed and client alone; clients may share test samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raysim.core.data import Indices
from raysim.core.errors import DataError
from raysim.core.seeds import stream


@dataclass(frozen=True)
class TestIndices:
    """Test shares: `counts` [K, C] samples of each class, among the indices `of_class` [C]."""

    counts: Indices
    of_class: tuple[Indices, ...]
    seed: int

    @property
    def sizes(self) -> Indices:
        """Test samples per client [K]."""
        return np.asarray(self.counts.sum(axis=1))

    def __getitem__(self, client: int) -> Indices:
        generator = stream(self.seed, "client-test", client)
        wanted = zip(self.of_class, self.counts[client], strict=True)
        return np.concatenate([generator.choice(own, n, replace=False) for own, n in wanted])


def client_test(
    train_counts: Indices, test_labels: Indices, ratio: float, seed: int
) -> TestIndices:
    """Return K test shares, each in the class proportions of the client's training samples.

    A client of N samples (`train_counts` [K, C]) gets round(ratio*N) test samples, at least one, at
    most as many as its classes allow without a sample twice, rounded by largest remainder. `ratio`
    is mostly the size of the test set (`test_labels`) over that of the training set.

    Raises:
        DataError: a client trains on a class of which the test set has no sample.
    """
    of_class = tuple(np.flatnonzero(test_labels == c) for c in range(train_counts.shape[1]))
    there = np.array([len(members) for members in of_class])  # [C]
    if len(lacking := np.flatnonzero(train_counts.any(axis=0) & (there == 0))):
        raise DataError(f"class {lacking[0]}: clients train on it; the test set has none of it")
    held = train_counts.sum(axis=1, keepdims=True)  # [K, 1]
    most = np.where(train_counts, there * held // np.maximum(train_counts, 1), len(test_labels))
    sizes = np.clip(np.rint(ratio * held), 1, most.min(axis=1, keepdims=True)).astype(np.int64)
    counts, rests = np.divmod(sizes * train_counts, held)
    order = np.argsort(np.argsort(-rests, axis=1, kind="stable"), axis=1)
    return TestIndices(counts + (order < sizes - counts.sum(axis=1, keepdims=True)), of_class, seed)
