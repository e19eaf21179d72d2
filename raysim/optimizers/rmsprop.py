"""RMSprop, as torch.optim.RMSprop without centering.

Source: Tieleman and Hinton, "Lecture 6.5: RMSProp", Coursera, 2012.

    v <- alpha * v + (1 - alpha) * g^2     d = g / (sqrt(v) + eps)
    direction: d, or with momentum b <- momentum * b + d
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from torch import Tensor

from raysim.api.optimizer import Optimizer

SQUARE, BUFFER = "square_avg", "momentum_buffer"


class RmsProp(Optimizer):
    """RMSprop, with momentum if it is set."""

    alpha: float = Field(
        default=0.99, ge=0, lt=1, description="share of the mean of squares that stays"
    )
    eps: float = Field(default=1e-8, ge=0, description="added to the root of the mean")
    momentum: float = Field(
        default=0.0, ge=0, lt=1, description="share of the last direction that stays"
    )

    @property
    def slots(self) -> tuple[str, ...]:
        """The mean of the squares of gradients, and the momentum if there is one."""
        return (SQUARE, BUFFER) if self.momentum else (SQUARE,)

    def direction(self, gradient: Tensor, slots: Mapping[str, Tensor], step: Any) -> Tensor:
        """Update the mean and the momentum; return the direction."""
        v = slots[SQUARE]
        v.mul_(self.alpha).add_(gradient.square() * (1 - self.alpha))
        scaled = gradient / v.sqrt().add_(self.eps)
        if BUFFER not in slots:
            return scaled
        return slots[BUFFER].mul_(self.momentum).add_(scaled)
