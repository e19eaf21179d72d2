"""FedMMD: a two-stream client whose outputs stay close to the global model's in distribution.

Source: Yao et al., "Two-Stream Federated Learning: Reduce the Communication Costs", VCIP 2018, and
its extension "Federated Learning with Additional Mechanisms on Clients to Reduce Communication
Costs", arXiv:1908.05891, 2019, eq. 2-5 and algorithm 1.

With X and Y the raw logits of the broadcast model (frozen, evaluation mode) and of the local one
for the same batch, and Z the 2N rows of both:

    loss + lam * MMD^2(X, Y)
    MMD^2(X, Y) = mean_ij k(x_i, x_j) + mean_ij k(y_i, y_j) - 2 mean_ij k(x_i, y_j)
    k(a, b) = mean over s of exp(-|a - b|^2 / (h * factor^s)),    s = 0..kernels-1, less kernels//2
    h = mean of |z_i - z_j|^2 over the ordered pairs i != j of Z

Choices where the paper leaves the formula open: the biased V-statistic; five kernels whose
bandwidths are 2^-2..2^2 times h; no gradient flows through h. Where h is 0 (equal rows at a round's
start) the penalty and its gradient are 0. They are 0 for a batch of one sample too: there h is
|x - y|^2, which makes MMD^2 a constant, but its gradient at fixed h grows without bound as y nears
x and throws clients of one sample off. lam=0 is FedAvg bit for bit.

Legend: N samples of the batch, C classes.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from raysim.core.rules import Batch, Outputs, Rules, View
from raysim.methods.fedavg import FedAvg


class FedMmd(FedAvg):
    """FedAvg with the maximum mean discrepancy to the global model's outputs in the objective.

    Helps where clients hold few classes: they keep more of what others taught the global model.
    Costs a second model in memory, its forward pass every step, and time and memory that grow
    with the square of the batch; bytes are FedAvg's.
    """

    lam: float = Field(default=0.1, ge=0, description="strength of the discrepancy")
    kernels: int = Field(default=5, ge=1, le=32, description="number of RBF kernels")
    factor: float = Field(default=2.0, gt=1, le=10, description="ratio of their bandwidths")

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the loss plus the discrepancy."""
        return Rules(penalties=(self._discrepancy,))

    def _discrepancy(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        frozen = view.at(view.broadcast["model"], batch.x).logits
        x, y = frozen.flatten(1), outputs.logits.flatten(1)
        return self.lam * squared_mmd(x, y, batch, self.kernels, self.factor)


def squared_mmd(x: Tensor, y: Tensor, batch: Batch, kernels: int, factor: float) -> Tensor:
    """Return the biased squared discrepancy between the rows of x [N, C] and of y [N, C]."""
    n, count = len(x), batch.size()
    joint = torch.cat([x, y])  # [2N, C]
    real = batch.padded_with_zeros(torch.ones_like(x[:, 0])).repeat(2)  # [2N], 0 for padding
    pairs = real[:, None] * real  # [2N, 2N]
    # By differences: |a|^2 + |b|^2 - 2ab would leave rounding errors where the rows are equal.
    squares = (joint[:, None] - joint).square().sum(-1)
    mean = (squares.detach() * pairs).sum() / (2 * count * (2 * count - 1)).clamp(min=1)
    scaled = squares / torch.where(mean > 0, mean, 1.0)
    parts = [torch.exp(-scaled / factor ** (s - kernels // 2)) for s in range(kernels)]
    kernel = torch.stack(parts).mean(dim=0) * pairs  # [2N, 2N]
    sums = kernel[:n, :n].sum() + kernel[n:, n:].sum() - 2 * kernel[:n, n:].sum()
    return torch.where(count > 1, sums / count.square().clamp(min=1), 0.0)
