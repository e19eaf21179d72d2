"""The holdout: a share of each client's samples that no training sees.

It is drawn when asked for, by seed and client alone, so a population costs nothing until its
clients train.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raysim.core.data import ClientIndices, Indices
from raysim.core.seeds import stream


@dataclass(frozen=True)
class TrainingIndices:
    """Client indices of which each client trains on one part and holds out the other.

    Of n samples round(h*n) are held out (half to even), at least one where h > 0 and n > 1, and
    never all of them. Where clients share samples, others may train on what one holds out.

    Attributes:
        whole: Who holds which samples.
        holdout: The share h that is held out.
        seed: The run's seed.
    """

    whole: ClientIndices
    holdout: float = 0.0
    seed: int = 0

    @property
    def sizes(self) -> Indices:
        """Samples that clients train on [K]; one number seen K times where `whole` has it so."""
        sizes = self.whole.sizes
        distinct = sizes[:1] if sizes.strides == (0,) else sizes
        return np.broadcast_to(distinct - self._held(distinct), sizes.shape)

    def parts(self, client: int, n: int) -> tuple[Indices, Indices]:
        """Return which of a client's n samples it trains on, and which it holds out, ascending."""
        count = int(self._held(np.array([n]))[0])
        held = np.zeros(n, dtype=bool)
        generator = stream(self.seed, "holdout", client)
        held[generator.choice(n, count, replace=False, shuffle=False)] = True
        return np.flatnonzero(~held), np.flatnonzero(held)

    def _held(self, sizes: Indices) -> Indices:
        """Return how many samples clients of `sizes` [n] hold out [n]."""
        wanted = np.maximum(np.rint(self.holdout * sizes), 1 if self.holdout else 0)
        held: Indices = np.minimum(wanted, sizes - 1).astype(np.int64)
        return held
