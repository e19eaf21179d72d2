"""Power of choice: selection by the largest losses among clients drawn by their samples.

Source: Cho, Wang and Joshi, "Towards Understanding Biased Client Selection in Federated Learning",
AISTATS 2022, section 4: the variant rpow-d, in which a client's loss is the mean of its last local
training and infinite before the first, so that nothing is computed or sent for the selection.

1. draw d clients without replacement, with probabilities in proportion to their samples
2. select the m of them with the largest losses; equal ones in the order of the draw
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from raysim.api.rules import Weighting
from raysim.api.selection import Sampling, Selection
from raysim.errors import SettingsError
from raysim.numbers.arrays import Integers
from raysim.selection.weighted import counted_twice
from raysim.user_input.limits import MOST


class PowerOfChoice(Selection):
    """Selection of the clients with the largest last losses, of d drawn by their samples.

    Speeds up training on unequal clients and, with a large d, is biased towards clients that the
    model fits worst. Costs time in proportion to the population.
    """

    d: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="clients that are drawn by their samples, at least m; none: 2 m",
    )

    def notes(self, samples: Integers, size: int, weighting: Weighting) -> Sequence[str]:
        """Return that weights by samples count them a second time."""
        return counted_twice(samples, self.d or 2 * size, size, weighting)

    def select(self, sampling: Sampling) -> list[int]:
        """Return the clients with the largest losses, in that order.

        Raises:
            SettingsError: d is less than the clients of a round.
        """
        if self.d is not None and self.d < sampling.wanted:
            raise SettingsError(
                f"selection.d={self.d}: must be at least the {sampling.wanted} clients of a round"
            )
        clients = sampling.candidates
        count = min(self.d or 2 * sampling.wanted, len(clients))
        if not count:
            return []
        weights = sampling.samples[clients] / sampling.samples[clients].sum()
        drawn = sampling.generator().choice(clients, count, replace=False, p=weights)
        losses = np.nan_to_num(sampling.losses[drawn], nan=np.inf)
        chosen: list[int] = drawn[np.argsort(-losses, kind="stable")][: sampling.wanted].tolist()
        return chosen
