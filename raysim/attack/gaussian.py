"""Gaussian noise in place of an update.

    d_k <- N(0, std^2 I)

Public codes differ in the mean (0, or 0.1) and in whether noise replaces the update or is added; it
replaces it here.
"""

from __future__ import annotations

import torch
from pydantic import Field

from raysim.api.attack import Attack
from raysim.api.rules import Upload, View
from raysim.attack.differences import changed


class Gaussian(Attack):
    """Send Gaussian noise in place of the update.

    Tests whether an aggregation tolerates updates far from all others: its norm is about std times
    the root of the number of values. Costs a draw for each value.
    """

    std: float = Field(default=1.0, gt=0, description="standard deviation of each value")

    def send(self, view: View, upload: Upload, clients: int) -> Upload:
        """Draw each value."""
        draws = view.generator("noise")
        return changed(
            upload,
            lambda d: (
                self.std * torch.randn(d.shape, generator=draws, device=d.device, dtype=d.dtype)
            ),
        )
