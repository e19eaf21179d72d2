"""Differential privacy of clients: the claim of a stage or a method, which the engine accounts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Accountant = Literal["rdp", "pld"]
"""Accountants, by the names of their measures: Renyi divergences, privacy loss distributions."""
Draw = Literal["poisson", "fixed", "once"]
"""Draws of cohorts that can be accounted: each client independently; m of all, equally likely; each
client at most once in so many rounds."""


@dataclass(frozen=True)
class NoiseTree:
    """Trees that add noise to the sums of rounds, in place of noise in each round.

    Each node of a tree has independent noise. The sum of a tree's first rounds has the noise of the
    nodes that make it up. No client takes part twice in the rounds of a tree.

    Attributes:
        rounds: Rounds of a tree; None: as many as there are clients for, K // m.
        completed: Whether rounds without clients complete a tree that ends.
    """

    rounds: int | None
    completed: bool

    def length(self, clients: int, size: int) -> int:
        """Return the rounds of a tree, given K and m."""
        return self.rounds or clients // size


@dataclass(frozen=True)
class PrivacyClaim:
    """Claim that the result of a pass is a sum of bounded changes with Gaussian noise.

    Attributes:
        noise: Noise multiplier: the standard deviation of the noise of the sum over the largest
            norm of a client's change. None: the least noise for `epsilon`.
        epsilon: The largest epsilon that the run may have; None sets no limit.
        delta: The delta of every epsilon.
        accountant: The accountant.
        cohort: Expected clients of a round of a hypothetical population; None accounts the run
            itself.
        population: Clients of the hypothetical population.
        tree: The trees that add noise; None: each round adds its own noise.
    """

    noise: float | None
    epsilon: float | None
    delta: float
    accountant: Accountant
    cohort: int | None = None
    population: int | None = None
    tree: NoiseTree | None = None


def multiplier_of(noise: float | None, epsilon: float | None) -> float | None:
    """Return the noise multiplier of settings; None if it follows from epsilon.

    Args:
        noise: The noise multiplier; None: the least noise for epsilon, or 1 without an epsilon.
        epsilon: The largest epsilon; None sets no limit.

    Raises:
        ValueError: there is no noise, but an epsilon.
    """
    if noise == 0 and epsilon is not None:
        raise ValueError(f"epsilon={epsilon}: needs noise above 0")
    return 1.0 if noise is None and epsilon is None else noise
