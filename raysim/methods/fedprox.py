"""FedProx: a proximal term keeps local models near the global one.

Source: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, eq. 2.

    loss + mu/2 * sum over all trainable parameters of (w_k - w)^2
    step:  w_k <- w_k - eta * (g + mu * (w_k - w))

The term is a transform: its gradient is added to the loss's, without autograd. The squared norm is
a sum, not a mean. mu=0 is FedAvg bit for bit. Deviation: all clients do the
same local work; the paper's gamma-inexact stragglers are not simulated.
"""

from __future__ import annotations

from functools import partial

import torch
from pydantic import Field

from raysim.core.rules import Batch, Rules, Transform, View, zero_term
from raysim.core.tensors import Tensors, add_scaled
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
        return Rules(transforms=(proximal(self.mu),))


def proximal(mu: float) -> Transform:
    """Return the transform that pulls the trained model v to the broadcast w.

    It adds mu * (v - w) to the gradient, and mu/2 ||v - w||^2 to the objective.
    """
    return Transform("proximal", partial(_pull_back, mu), zero_term, term="term")


def _pull_back(
    mu: float, view: View, gradients: Tensors, batch: Batch, state: Tensors
) -> tuple[Tensors, Tensors]:
    params = {name: view.params[name] for name in gradients}
    moved = add_scaled(params, view.broadcast["model"], -1)
    distances = torch.stack([torch.linalg.vector_norm(each) for each in moved.values()])
    return add_scaled(gradients, moved, mu), {"term": mu / 2 * distances.square().sum()}
