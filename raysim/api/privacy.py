"""Differential privacy of clients: the claim of a stage or a method, which is accounted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Accountant = Literal["rdp", "pld"]
"""Accountants, by the names of their measures: Renyi divergences, privacy loss distributions."""
Draw = Literal["poisson", "fixed", "once"]
"""Draws of cohorts that can be accounted: each client by itself; m of all, equally likely; each
client at most once in so many rounds."""


@dataclass(frozen=True)
class NoiseTree:
    """Trees by which the noise of the rounds' sums is added, in place of noise of each round.

    Each node of a tree has noise of its own, and the sum of a tree's first rounds has that of the
    nodes that make it up. No client takes part twice in the rounds of a tree.

    Attributes:
        rounds: Rounds of a tree; None: as many as there are clients for, K // m.
        completed: Whether a tree that ends is completed by rounds without clients.
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
            norm of a client's change. None: the least that keeps to `epsilon`.
        epsilon: The largest epsilon that the run may have; None sets no limit.
        delta: The delta of every epsilon.
        accountant: The accountant.
        cohort: Of a hypothetical population, the expected clients of a round; None accounts the
            run itself.
        population: Of a hypothetical population, its clients.
        tree: The trees by which noise is added; None: each round has noise of its own.
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
        noise: The noise multiplier; None: the least that keeps to epsilon, or 1 without one.
        epsilon: The largest epsilon; None sets no limit.

    Raises:
        ValueError: there is no noise, but an epsilon.
    """
    if noise == 0 and epsilon is not None:
        raise ValueError(f"epsilon={epsilon}: needs noise above 0")
    return 1.0 if noise is None and epsilon is None else noise
