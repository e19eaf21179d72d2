"""Adam, as torch.optim.Adam.

Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.

    m <- beta_1 * m + (1 - beta_1) * g          v <- beta_2 * v + (1 - beta_2) * g^2
    direction: (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + eps)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from raysim.api.optimizer import Optimizer, beside

MEAN, SQUARE = "exp_avg", "exp_avg_sq"
Beta = Annotated[float, Field(ge=0, lt=1)]


class Adam(Optimizer):
    """Adam; weight decay is a part of the gradient."""

    betas: tuple[Beta, Beta] = Field(
        default=(0.9, 0.999), description="shares of the means that stay: of gradients, of squares"
    )
    eps: float = Field(default=1e-8, ge=0, description="added to the root of the mean of squares")
    slots: ClassVar[tuple[str, ...]] = (MEAN, SQUARE)  # the means of gradients and of their squares

    def direction(self, gradient: Tensor, slots: Mapping[str, Tensor], step: Any) -> Tensor:
        """Update both means; return the direction."""
        first, second = self.betas
        m, v = slots[MEAN], slots[SQUARE]
        m.mul_(first).add_(gradient * (1 - first))
        v.mul_(second).add_(gradient.square() * (1 - second))
        root = v.sqrt().div_(beside((1 - second**step) ** 0.5, v)).add_(self.eps)
        direction: Tensor = m / root / beside(1 - first**step, m)
        return direction
