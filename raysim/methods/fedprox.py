"""FedProx: a proximal term keeps local models near the global one.

Source: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, eq. 2.

    loss + mu/2 * sum over all trainable parameters of (w_k - w)^2

The squared norm is a sum, not a mean. mu=0 is FedAvg bit for bit. Deviation: all clients do the
same local work; the paper's gamma-inexact stragglers are not simulated.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from raysim.core.rules import Batch, Outputs, Rules, View
from raysim.methods.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg with a proximal term in the local objective.

    Helps where clients' data differ or their local work is long: local models stay near the global
    one. Costs a second set of parameters in memory and a pass over both every step; bytes are
    FedAvg's.
    """

    mu: float = Field(default=0.01, ge=0, description="strength of the proximal term")

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the loss plus the proximal term."""
        return Rules(penalties=(self._proximal,))

    def _proximal(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        squares = [(view.params[n] - view.start[n]).square().sum() for n in view.trained]
        return self.mu / 2 * torch.stack(squares).sum()
