"""Attacks as far from the honest mean as distances between honest updates allow.

Source: Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks
and Defenses for Federated Learning", NDSS 2021.

    d_k <- mean - gamma * p         with the largest gamma whose distances pass as honest ones
    p = mean / ||mean||, sign(mean), or std

The search is the authors': from gamma = 10 by steps that are halved, until one is below 1e-5. Their
code takes the unit vector of the mean by default; the paper prints std as the best.

Legend: h honest clients, n coordinates of a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.core.attack import Attack, KnownUpdates, MeasuredUpdates

FIRST, SMALLEST = 10.0, 1e-5
"""First gamma of the search, and the smallest step."""


class Envelope(Attack, ABC):
    """Base of the attacks within the distances of honest updates."""

    direction: Literal["unit", "sign", "std"] = Field(
        default="unit",
        description="perturbation p: the mean divided by its norm, its signs, or the standard"
        " deviations",
    )

    @abstractmethod
    def passes(self, distances: Tensor, honest: Tensor) -> bool:
        """Return whether an update passes as an honest one.

        Args:
            distances: Its squared distances to the honest updates [h].
            honest: Those between the honest updates [h, h].
        """

    def measure(self, known: KnownUpdates) -> Tensor:
        """Return inner products of the honest updates with each other and with p, and p's norm."""
        rows, p = known.honest, self._perturbation(known.honest)
        products = rows @ rows.T
        square = (p @ p).expand(len(rows), 1)
        return torch.cat([(products + products.T) / 2, (rows @ p)[:, None], square], dim=1)

    def decide(self, measured: MeasuredUpdates) -> Tensor:
        """Return gamma, of p as `_perturbation` gives it [1]."""
        numbers = measured.numbers
        products, along, square = numbers[:, :-2], numbers[:, -2], numbers[0, -1]
        norms = products.diagonal()
        honest = (norms[:, None] + norms - 2 * products).clamp(min=0).fill_diagonal_(0)
        from_mean = (products.mean() - 2 * products.mean(dim=1) + norms).clamp(min=0)
        unit = float(square.sqrt()) if self.direction == "unit" else 1.0
        if not unit:
            return numbers.new_zeros(1)

        def fits(gamma: float) -> bool:
            g = gamma / unit
            moved = from_mean - 2 * g * (along.mean() - along) + g * g * square
            return self.passes(moved.clamp(min=0), honest)

        return numbers.new_tensor([largest(fits) / unit])

    def forge(self, known: KnownUpdates) -> Tensor:
        """Return the perturbed mean [n]."""
        return known.honest.mean(dim=0) - known.decided[0] * self._perturbation(known.honest)

    def _perturbation(self, honest: Tensor) -> Tensor:
        """Return p in a block [n]; of `unit` not yet divided by its norm."""
        if self.direction == "std":
            return honest.std(dim=0, correction=min(len(honest) - 1, 1))
        mean = honest.mean(dim=0)
        return mean.sign() if self.direction == "sign" else mean


def largest(fits: Callable[[float], bool]) -> float:
    """Return the largest gamma that fits, by the authors' search."""
    gamma = step = FIRST
    found = 0.0
    while abs(found - gamma) > SMALLEST:
        step /= 2
        if fits(gamma):
            found = gamma
            gamma += step
        else:
            gamma -= step
    return found
