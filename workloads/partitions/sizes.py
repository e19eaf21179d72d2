"""Unequal sizes of clients.

Client k of K holds n_k of N samples, in proportion to r_k but for one sample that each has:

    n_k = 1 + share of the other N - K by r_k (cut at rounded running sums, so that all are dealt)

    linear       r_k = 1 + s * (2 q_k - 1)     q_k = i_k / (K - 1), i_k the rank of k: 0 ... K - 1
    power_law    r_k = (i_k + 1)^(-s)
    log_normal   r_k = exp(s * z_k)            z_k ~ N(0, 1)

Ranks and z_k are drawn from the seed. s is `spread`, by default 0.9 for linear (the largest client
has 19 times the smallest) and 1 for the others (Zipf's law; a standard deviation of 1 of log n_k).
Formulas chosen here: papers and tools name these families, with parameters of their own.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from raysim.numbers.arrays import Array, Floats
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import Indices, ListedIndices
from raysim.samples.data import Partition

SPREADS = {"linear": 0.9, "power_law": 1.0, "log_normal": 1.0}
"""Spread of each family if none is given."""
MOST_SPREAD = 10.0


def cut(fractions: Floats, totals: Indices) -> Indices:
    """Return whole numbers [..., K] near `fractions` [..., K] of their sums, `totals` [..., 1]."""
    # Cutting at rounded running sums gives each sample to exactly one client.
    ends = np.floor(np.cumsum(fractions, axis=-1) * totals).astype(np.int64)
    ends[..., -1:] = totals
    return np.diff(np.minimum(ends, totals), axis=-1, prepend=0)


def dealt(ratios: Array, total: int) -> Indices:
    """Return whole numbers [K] with a sum: one each, and shares of the rest by their ratios.

    Ratios that are all 0 are equal ones.
    """
    total_ratio = ratios.sum()
    shares = ratios / total_ratio if total_ratio else np.full(len(ratios), 1 / len(ratios))
    return 1 + cut(shares, np.array([total - len(ratios)]))


class Sized(Partition):
    """Partition whose clients may have sizes of a family; a base class."""

    sizes: Literal["linear", "power_law", "log_normal"] | None = Field(
        default=None, description="family of the clients' sizes, see spread; none: equally many"
    )
    spread: Annotated[float, Field(gt=0, le=MOST_SPREAD)] | None = Field(
        default=None,
        description="s of sizes: linear from 1 - s to 1 + s of the mean (none: 0.9); power_law"
        " rank^-s and log_normal exp(s z) (none: 1)",
    )

    @model_validator(mode="after")
    def _spread_is_of_a_family(self) -> Self:
        if self.spread is not None and self.sizes is None:
            raise ValueError(f"spread={self.spread}: needs partition.sizes")
        if self.sizes == "linear" and (self.spread or 0) > 1:
            raise ValueError(f"spread={self.spread}: must be at most 1 with partition.sizes=linear")
        return self

    def client_sizes(self, total: int, clients: int, generator: np.random.Generator) -> Indices:
        """Return the samples of each client [K], of `total` in all; at least one for each."""
        if self.sizes is None:  # the first have one more, as in numpy.array_split
            return np.full(clients, total // clients) + (np.arange(clients) < total % clients)
        return dealt(self.client_ratios(clients, generator), total)

    def client_ratios(self, clients: int, generator: np.random.Generator) -> Array:
        """Return r_k of each client [K], of `sizes`; equal ones of none."""
        if self.sizes is None:
            return np.ones(clients)
        spread = SPREADS[self.sizes] if self.spread is None else self.spread
        ranks = generator.permutation(clients)
        ratios: Array
        if self.sizes == "linear":
            ratios = 1 + spread * (2 * ranks / max(clients - 1, 1) - 1)
        elif self.sizes == "power_law":
            ratios = (ranks + 1.0) ** -spread
        else:
            ratios = np.exp(spread * generator.standard_normal(clients))
        return ratios

    def pieces(self, ordered: Indices, clients: int, seed: int) -> ListedIndices:
        """Return consecutive pieces of ordered samples, one for each client."""
        ends = np.cumsum(self.client_sizes(len(ordered), clients, stream(seed, "sizes")))
        return ListedIndices.of(np.split(ordered, ends[:-1]))
