"""Attacks as far from the honest mean as distances between honest updates allow.

Source: Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks
and Defenses for Federated Learning", NDSS 2021.

    d_k <- mean - gamma * p         with the largest gamma at which distances pass as honest ones
    p = mean / ||mean||, sign(mean), or std

The largest gamma is where a quadratic in gamma reaches its bound, and is taken as its root. The
authors' code searches for it: from gamma = 10 by steps that are halved until one is below 1e-5,
which ends below 20 whatever the distances. Their code takes the unit vector of the mean by default;
the paper prints std as the best.

Legend: h honest clients, n coordinates of a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.api.attack import Attack, KnownUpdates, MeasuredUpdates


class Envelope(Attack, ABC):
    """Base of the attacks within the distances of honest updates."""

    direction: Literal["unit", "sign", "std"] = Field(
        default="unit",
        description="perturbation p: the mean divided by its norm, its signs, or the standard"
        " deviations",
    )

    @abstractmethod
    def largest(self, distances: Tensor, slopes: Tensor, square: Tensor, honest: Tensor) -> Tensor:
        """Return the largest gamma at which the update passes as an honest one [].

        The update's squared distances to the honest updates are
        distances + 2 * gamma * slopes + gamma^2 * square.

        Args:
            distances: Squared distances of the mean to the honest updates [h].
            slopes: Inner products of p with the honest updates' differences from the mean [h].
            square: Squared norm of p [], above 0.
            honest: Squared distances between the honest updates [h, h].
        """

    def measure(self, known: KnownUpdates) -> Tensor:
        """Return inner products of the honest updates with each other and with p, and p's norm."""
        rows, p = known.honest, self._perturbation(known.honest)
        products = rows @ rows.T
        square = (p @ p).expand(len(rows), 1)
        return torch.cat([(products + products.T) / 2, (rows @ p)[:, None], square], dim=1)

    def decide(self, measured: MeasuredUpdates) -> Tensor:
        """Return gamma, for p as `_perturbation` gives it [1]."""
        numbers = measured.numbers
        products, along, square = numbers[:, :-2], numbers[:, -2], numbers[0, -1]
        norms = products.diagonal()
        honest = (norms[:, None] + norms - 2 * products).clamp(min=0).fill_diagonal_(0)
        from_mean = (products.mean() - 2 * products.mean(dim=1) + norms).clamp(min=0)
        if not square:
            return numbers.new_zeros(1)
        return self.largest(from_mean, along - along.mean(), square, honest).reshape(1)

    def forge(self, known: KnownUpdates) -> Tensor:
        """Return the perturbed mean [n]."""
        return known.honest.mean(dim=0) - known.decided[0] * self._perturbation(known.honest)

    def _perturbation(self, honest: Tensor) -> Tensor:
        """Return p in a block [n]; for `unit`, not yet divided by its norm."""
        if self.direction == "std":
            return honest.std(dim=0, correction=min(len(honest) - 1, 1))
        mean = honest.mean(dim=0)
        return mean.sign() if self.direction == "sign" else mean
