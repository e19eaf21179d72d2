"""Poisson selection: each client takes part independently, with probability `fraction`.

Sources: Mironov, Talwar and Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism",
2019, with bounds that hold for this sampling and no other; McMahan et al., "Learning Differentially
Private Recurrent Language Models", ICLR 2018, algorithm 1.

The size of a cohort is binomial with mean C*K, and a cohort may be empty. The number of clients is
drawn first and then the clients, with the same distribution and at the cost of a cohort.
"""

from __future__ import annotations

from typing import ClassVar

from raysim.api.privacy import Draw
from raysim.api.selection import Sampling, Selection
from raysim.numbers.seeds import sample_cohort


class Poisson(Selection):
    """Independent draw of each client, with probability `fraction`: cohorts differ in size.

    The accounting of differential privacy assumes it. Clients that are away take part only if the
    server waits for them. `clock.extra` adds no clients: all of a cohort count.
    """

    draw: ClassVar[Draw | None] = "poisson"
    may_be_empty: ClassVar[bool] = True

    def select(self, sampling: Sampling) -> list[int]:
        """Return clients, ascending; there may be none."""
        generator = sampling.generator()
        count = int(generator.binomial(sampling.clients, sampling.fraction))
        drawn = sample_cohort(generator, sampling.clients, count)
        if sampling.waits or not drawn:
            return drawn
        here = sampling.available(drawn)
        return [client for client, yes in zip(drawn, here, strict=True) if yes]
