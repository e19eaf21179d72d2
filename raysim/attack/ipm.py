"""Inner product manipulation: the opposite of the honest mean.

Source: Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product
Manipulation", UAI 2019.

    d_k <- -eps * mean of the honest d_i

The paper has eps 0.1 and 100; byzfl has 2, blades 1.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from raysim.api.attack import Attack, KnownUpdates


class Ipm(Attack):
    """Send a multiple of the opposite of the honest mean.

    A small eps hides among honest updates and slows them; a large one turns a mean around, and is
    cut by all that look at distances. Costs a file of each update.
    """

    eps: float = Field(default=0.1, gt=0, description="factor of the honest mean, negated")

    def forge(self, known: KnownUpdates) -> Tensor:
        """Return the manipulated mean [n]."""
        return -self.eps * known.honest.mean(dim=0)
