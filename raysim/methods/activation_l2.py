"""Activation L2: FedMAX's first idea, a norm on activations.

Source: Chen, Bhardwaj and Marculescu, "FedMAX: Mitigating Activation Divergence for Accurate and
Communication-Efficient Federated Learning", ECML PKDD 2020, eq. 2.

With a [N, F] the activations at the input of the last fully connected layer:

    loss + beta * sqrt(sum_i sum_j a_ij^2)          the Frobenius norm of the batch's activations
    loss + beta/N * sum_i sqrt(sum_j a_ij^2)        per_sample=true: eq. 2, averaged over samples

Deviation: eq. 2 is a norm per sample; the authors' code takes the norm of the whole matrix, which
is the default here and grows with the batch like sqrt(N). Where a norm is 0 its gradient is taken
as 0. beta=0 is FedAvg bit for bit.

Legend: N samples of the batch, F activations.
"""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor

from raysim.api.rules import Batch, Outputs, Rules, View
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import at_least_float32


class ActivationL2(FedAvg):
    """FedAvg with the local objective keeping activations small.

    Helps where clients hold few classes. It is FedMAX's baseline and more sensitive to beta: a
    large beta drives all activations to 0. Costs one norm a step more in compute; memory and bytes
    are FedAvg's.
    """

    staged: ClassVar[bool] = True
    real: ClassVar[bool] = True

    beta: float = Field(default=1e-3, ge=0, description="strength of the norm")
    per_sample: bool = Field(
        default=False, description="mean of the samples' norms (eq. 2), not the norm of the batch"
    )

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the loss plus the norm."""
        return Rules(penalties=(self._norm,))

    def _norm(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        activations = at_least_float32(cast(Tensor, outputs.hidden))  # [N, F]
        if self.per_sample:
            return self.beta * batch.mean(torch.linalg.vector_norm(activations, dim=1))
        norm: Tensor = torch.linalg.vector_norm(batch.padded_with_zeros(activations))
        return self.beta * norm
