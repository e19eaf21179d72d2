"""Data sharing: samples that every client has in addition to its own.

Source: Zhao et al., Federated Learning with Non-IID Data, arXiv:1806.00582, 2018, section 4: a set
G with equally many samples of each class lies at the server, apart from the samples D of the
clients. Before the first round each client is sent a random part alpha of it, and trains on both
together. There, training may also start from a model trained on G: here `start_from` names one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import Indices


class SomeInputs:
    """Inputs [n, ...] of some samples, read when they are asked for.

    It has the `len`, `shape` and `dtype` of these inputs, and takes a slice or sample numbers.
    """

    def __init__(self, inputs: Any, rows: Indices) -> None:
        self._inputs, self._rows = inputs, rows
        self.shape: tuple[int, ...] = (len(rows), *inputs.shape[1:])
        self.dtype: np.dtype[Any] = inputs.dtype

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice | Indices) -> Array:
        """Return the inputs of a slice, or of sample numbers [n]."""
        inputs: Array = self._inputs[self._rows[rows]]
        return inputs


def shared_samples(targets: Array, count: int, seed: int) -> Indices:
    """Draw the shared samples [count], ascending.

    They depend only on targets, number and seed, so they are the same for every partition and
    population.

    Args:
        targets: Targets [N, ...] of the samples. If they are class numbers [N], each class gives
            equally many samples, and some at random one more for the remainder. Otherwise all
            samples are equally likely.
        count: Number of shared samples.
        seed: The run's seed.

    Raises:
        DataError: a class has too few samples, or all samples would be shared.
    """
    if count >= len(targets):
        raise DataError(
            f"partition.shared={count}: the dataset has {len(targets)} training samples; clients"
            " need samples besides the shared ones"
        )
    generator = stream(seed, "shared")
    if targets.ndim != 1 or targets.dtype.kind not in "iu":
        return np.sort(generator.choice(len(targets), count, replace=False, shuffle=False))
    labels, held = np.unique(targets, return_counts=True)
    per_class, more = divmod(count, len(labels))
    wanted = per_class + (generator.permutation(len(labels)) < more)
    if len(few := np.flatnonzero(held < wanted)):
        raise DataError(
            f"partition.shared={count}: {wanted[few[0]]} samples of each of {len(labels)} classes;"
            f" class {labels[few[0]]} has {held[few[0]]}"
        )
    drawn = [
        generator.choice(np.flatnonzero(targets == label), n, replace=False, shuffle=False)
        for label, n in zip(labels, wanted, strict=True)
    ]
    return np.sort(np.concatenate(drawn))
