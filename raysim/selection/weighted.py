"""Selection weighted by samples: clients with more samples take part more often.

Clients are drawn one by one without replacement, each with a probability in proportion to its
samples among the remaining clients. With `weighting=uniform` the mean over clients that were drawn
with replacement would be the mean over samples (Li et al., "On the Convergence of FedAvg on Non-IID
Data", ICLR 2020, scheme I); without replacement this holds nearly, where cohorts are small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raysim.api.rules import Weighting
from raysim.api.selection import Sampling, Selection
from raysim.numbers.arrays import Integers

UNEQUAL = 1.1
"""Samples of the largest client over the mean; from here on sizes count as unequal."""


class Weighted(Selection):
    """Draw of clients in proportion to their samples.

    Helps where few clients hold most of the data. Costs time in proportion to the population.
    """

    plans_ahead: ClassVar[bool] = True

    def notes(self, samples: Integers, size: int, weighting: Weighting) -> Sequence[str]:
        """Return that weights by samples count them a second time."""
        return counted_twice(samples, size, size, weighting)

    def select(self, sampling: Sampling) -> list[int]:
        """Return clients without replacement."""
        clients = sampling.candidates
        count = min(sampling.wanted, len(clients))
        if not count:
            return []
        weights = sampling.samples[clients] / sampling.samples[clients].sum()
        drawn: list[int] = (
            sampling.generator().choice(clients, count, replace=False, p=weights).tolist()
        )
        return drawn


def counted_twice(
    samples: Integers, drawn: int, size: int, weighting: Weighting
) -> tuple[str, ...]:
    """Return a line if clients are both drawn and weighted by their samples; else ().

    It is also empty if all clients take part, or a single one: its weight is then always 1.

    Args:
        samples: Training samples of each client that may take part [K].
        drawn: Clients that are drawn by their samples.
        size: m, the clients of a round.
        weighting: Weights of the mean of a round.
    """
    unequal = samples.max() > UNEQUAL * samples.mean()
    if weighting != "examples" or not unequal or drawn >= len(samples) or size < 2:
        return ()
    return (
        "clients are drawn by their samples, and weighting=examples weighs those drawn by them"
        " once more, so that large clients count for more than their share of the samples;"
        " weighting=uniform weighs those drawn alike",
    )
