"""Selection weighted by samples: clients with more samples take part more often.

Clients are drawn one by one without replacement, each with a probability in proportion to its
samples among the remaining clients. With `weighting=uniform` the mean over clients that were drawn
with replacement would be the mean over samples (Li et al., "On the Convergence of FedAvg on Non-IID
Data", ICLR 2020, scheme I); without replacement this holds nearly, where cohorts are small.
"""

from __future__ import annotations

from typing import ClassVar

from raysim.core.selection import Sampling, Selection


class Weighted(Selection):
    """Draw of clients in proportion to their samples.

    Helps where few clients hold most of the data. Costs time in proportion to the population.
    """

    plans_ahead: ClassVar[bool] = True

    def select(self, now: Sampling) -> list[int]:
        """Return clients without replacement."""
        clients = now.candidates
        count = min(now.wanted, len(clients))
        if not count:
            return []
        weights = now.samples[clients] / now.samples[clients].sum()
        drawn: list[int] = now.generator().choice(clients, count, replace=False, p=weights).tolist()
        return drawn
