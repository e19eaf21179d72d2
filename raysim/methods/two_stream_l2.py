"""Two-stream L2: FedMMD's baseline, a squared distance to the global model.

Source: Yao et al., "Federated Learning with Additional Mechanisms on Clients to Reduce
Communication Costs", arXiv:1908.05891, 2019, section 4.2 ("two-stream model constrained by L2
norm").

With X and Y the raw logits of the broadcast model (frozen, evaluation mode) and of the local one
for the same batch:

    loss + lam/2 * sum_i |y_i - x_i|^2                         space="outputs", reduction="sum"
    loss + lam/N * sum_i |y_i - x_i|^2                         space="outputs", reduction="mean"
    loss + lam * sum over all trainable parameters of (w_k - w)^2              space="weights"

The distance is between logits, summed and halved as TensorFlow's l2_loss in the authors' code
(repository TwoStreamFederatedLearning): lam is 0.01 on CIFAR-10, 0.001 on MNIST. "weights" is the
paper's other reading, and FedProx with mu = 2 lam. lam=0 is FedAvg bit for bit.

Legend: N samples of the batch.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from raysim.api.rules import Batch, Outputs, Rules, View
from raysim.methods.fedavg import FedAvg
from raysim.methods.fedprox import FedProx


class TwoStreamL2(FedAvg):
    """FedAvg with the squared distance to the global model in the local objective.

    Helps where local models drift apart. The baseline of FedMMD: it holds every output or weight in
    place, where FedMMD holds their distribution. In outputs it costs a second model in memory and
    its forward pass every step; in weights a pass over the parameters; bytes are FedAvg's.
    """

    compares: ClassVar[bool] = True

    lam: float = Field(default=0.01, ge=0, description="strength of the distance")
    reduction: Literal["sum", "mean"] = Field(
        default="sum",
        description="of the outputs' distance: half its sum over a batch, or its mean; the weights'"
        " distance has the sum alone",
    )
    space: Literal["outputs", "weights"] = Field(
        default="outputs", description="tensors that are compared: outputs or weights"
    )

    @model_validator(mode="after")
    def _reduces_outputs(self) -> Self:
        if self.space == "weights" and self.reduction != "sum":
            raise ValueError(f"reduction={self.reduction}: must be sum with method.space=weights")
        return self

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the loss plus the distance."""
        if self.space == "weights":
            return FedProx(mu=2 * self.lam).rules()
        return Rules(penalties=(self._distance,))

    def _distance(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        frozen = view.at(view.received, batch.x).logits  # [N, C]
        distances = (outputs.logits - frozen).square().flatten(1).sum(dim=1)  # [N]
        if self.reduction == "mean":
            return self.lam * batch.mean(distances)
        return self.lam / 2 * batch.padded_with_zeros(distances).sum()
