"""Adagrad, as torch.optim.Adagrad without its decay of the learning rate.

Source: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic
Optimization", JMLR 12, 2011.

    s <- s + g^2                           direction: g / (sqrt(s) + eps)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from raysim.api.optimizer import Optimizer

SUM = "sum"


class Adagrad(Optimizer):
    """Adagrad; the sum of squares starts at zero."""

    eps: float = Field(default=1e-10, ge=0, description="added to the root of the sum")
    slots: ClassVar[tuple[str, ...]] = (SUM,)  # the sum of the squares of gradients

    def direction(
        self, gradient: Tensor, slots: Mapping[str, Tensor], step: float | Tensor
    ) -> Tensor:
        """Update the sum; return the direction."""
        total = slots[SUM].add_(gradient.square())
        return gradient / total.sqrt().add_(self.eps)
