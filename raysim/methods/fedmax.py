"""FedMAX: a maximum-entropy prior on activations.

Source: Chen, Bhardwaj and Marculescu, "FedMAX: Mitigating Activation Divergence for Accurate and
Communication-Efficient Federated Learning", ECML PKDD 2020, eq. 3 and 4.

With a the activations at the input of the last fully connected layer, q = softmax(a) and u = 1/F:

    loss + beta/(N*F) * sum_i sum_j u * (log u - log q_ij)         direction="u_q": KL(u || q)
    loss + beta/(N*F) * sum_i sum_j q_ij * (log q_ij - log u)      direction="q_u": KL(q || u)

Deviation: the printed eq. 4 is KL(q || u), averaged over the N samples alone. The authors' code
computes KL(u || q) with a mean over the F activations too, which is why beta is as large as 1500;
it is the default here. direction="q_u" is eq. 4 with the same mean. beta=0 is FedAvg bit for bit.

Legend: N samples of the batch, F activations.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, cast

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from raysim.api.rules import Batch, Outputs, Rules, View
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import at_least_float32


class FedMax(FedAvg):
    """FedAvg with the local objective drawing every sample's activations towards uniform ones.

    Helps where clients hold few classes and their activations drift apart. Costs a softmax over
    the activations more in compute; memory and bytes are FedAvg's.
    """

    staged: ClassVar[bool] = True
    real: ClassVar[bool] = True

    beta: float = Field(default=1500.0, ge=0, description="strength of the entropy term")
    direction: Literal["u_q", "q_u"] = Field(
        default="u_q", description="KL(u || q) as the authors' code has it, or eq. 4's KL(q || u)"
    )

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the loss plus the divergence."""
        return Rules(penalties=(self._divergence,))

    def _divergence(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        activations = at_least_float32(cast(Tensor, outputs.hidden))  # [N, F]
        log_q = F.log_softmax(activations, dim=1)
        log_u = -math.log(activations.shape[1])
        if self.direction == "u_q":
            terms = math.exp(log_u) * (log_u - log_q)
        else:
            terms = log_q.exp() * (log_q - log_u)
        return self.beta * batch.mean(terms.mean(dim=1))
