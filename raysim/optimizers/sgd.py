"""SGD with (Nesterov) momentum, as torch.optim.SGD without dampening.

b <- momentum * b + g                  direction: b, or with nesterov g + momentum * b
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from raysim.api.optimizer import Optimizer

BUFFER = "momentum_buffer"


class Sgd(Optimizer):
    """Stochastic gradient descent."""

    momentum: float = Field(
        default=0.0, ge=0, lt=1, description="share of the last direction that stays"
    )
    nesterov: bool = Field(default=False, description="Nesterov momentum; needs momentum above 0")

    @property
    def slots(self) -> tuple[str, ...]:
        """The momentum, if there is one."""
        return () if self.keeps_gradient else (BUFFER,)

    @property
    def keeps_gradient(self) -> bool:
        """True without momentum."""
        return self.momentum == 0

    def direction(
        self, gradient: Tensor, slots: Mapping[str, Tensor], step: float | Tensor
    ) -> Tensor:
        """Update the momentum; return the direction."""
        buffer = slots[BUFFER].mul_(self.momentum).add_(gradient)
        return gradient.add(buffer, alpha=self.momentum) if self.nesterov else buffer
