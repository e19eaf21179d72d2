"""FedProx: a proximal term keeps local models near the global one.

Source: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, eq. 2.

    loss + mu/2 * sum over all trainable parameters of (w_k - w)^2           reduction="sum"
    loss + mu/2 * sum over tensors of the mean of (w_k - w)^2                reduction="mean"
    step:  w_k <- w_k - eta * (g + mu * (w_k - w)),  with "mean" mu / (the tensor's size) for mu

The term is a transform: its gradient is added to the loss's, without autograd. FedMAX's authors run
"mean" with mu=1 as FedProx in their code. mu=0 is FedAvg bit for bit. Deviation: all clients do the
same local work; the paper's gamma-inexact stragglers are not simulated.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field

from raysim.api.rules import Batch, Rules, Transform, View, zero_term
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import Tensors, add_scaled, inner_products

Reduction = Literal["sum", "mean"]


class FedProx(FedAvg):
    """FedAvg with a proximal term in the local objective.

    Helps where clients' data differ or their local work is long: local models stay near the global
    one. Costs a second set of parameters in memory and a pass over both every step; bytes are
    FedAvg's.
    """

    compares: ClassVar[bool] = True

    mu: float = Field(default=0.01, ge=0, description="strength of the proximal term")
    reduction: Reduction = Field(
        default="sum", description="of the squares: over all parameters, or their mean by tensor"
    )

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the loss plus the proximal term."""
        return Rules(transforms=(proximal(self.mu, self.reduction),))


def proximal(mu: float, reduction: Reduction = "sum") -> Transform:
    """Return the transform that pulls the trained model v to the broadcast w.

    It adds mu * (v - w) to the gradient, and mu/2 ||v - w||^2 to the objective; with "mean", both
    are divided by the size of each tensor.
    """
    return Transform(
        "proximal",
        partial(_pull_back, mu=mu, reduction=reduction),
        zero_term,
        term="term",
        pull=mu if reduction == "sum" else None,
    )


def _pull_back(
    view: View,
    gradients: Tensors,
    batch: Batch,
    state: Tensors,
    *,
    mu: float,
    reduction: Reduction,
) -> tuple[Tensors, Tensors]:
    params = {name: view.params[name] for name in gradients}
    moved = add_scaled(params, view.received, -1)
    squares = inner_products(moved, moved)
    if reduction == "sum":
        return add_scaled(gradients, moved, mu), {"term": mu / 2 * squares.sum()}
    pulled = {
        name: add_scaled({name: gradient}, moved, mu / _size(moved[name]))[name]
        for name, gradient in gradients.items()
    }
    means = [total / _size(tensor) for total, tensor in zip(squares, moved.values(), strict=True)]
    return pulled, {"term": mu / 2 * torch.stack(means).sum()}


def _size(tensor: torch.Tensor) -> int:
    """Return the number of values that a mean is taken over; 1 for a tensor without values."""
    return max(tensor.numel(), 1)
