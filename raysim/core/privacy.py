"""Differential privacy of clients: the claim of a stage of the channel, which is accounted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Accountant = Literal["rdp", "pld"]
"""Accountants, by the names of their measures: Renyi divergences, privacy loss distributions."""
Draw = Literal["poisson", "fixed"]
"""Draws of cohorts that can be accounted: each client by itself, or m of all, equally likely."""


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
    """

    noise: float | None
    epsilon: float | None
    delta: float
    accountant: Accountant
    cohort: int | None = None
    population: int | None = None
