"""FedMMD: a two-stream client with outputs close to the global model's in distribution.

Source: Yao et al., "Two-Stream Federated Learning: Reduce the Communication Costs", VCIP 2018, and
its extension "Federated Learning with Additional Mechanisms on Clients to Reduce Communication
Costs", arXiv:1908.05891, 2019, eq. 2-5 and algorithm 1.

With X and Y the raw logits of the broadcast model (frozen, evaluation mode) and of the local one
for the same batch, and Z the 2N rows of both:

    MMD^2(X, Y) = mean_ij k(x_i, x_j) + mean_ij k(y_i, y_j) - 2 mean_ij k(x_i, y_j)

    kernel="fixed":     loss + lam * max(1e-4, MMD^2(X, Y))
                        k(a, b) = sum over s of exp(-|a - b|^2 / (2 s)),
                        s = 1e-6, 1e-5 .. 1, 5, 10 .. 35, 100, 1000 .. 1e6
    kernel="adaptive":  loss + lam * MMD^2(X, Y)
                        k(a, b) = mean over s of exp(-|a - b|^2 / (h 2^s)),  s = -2..2
                        h = mean of |z_i - z_j|^2 over the ordered pairs i != j of Z

MMD^2 is the biased V-statistic; means over pairs leave padding out. "fixed" is the authors' code
(repository TwoStreamFederatedLearning): 19 kernels, and no gradient below the floor. With
"adaptive", a choice of ours, no gradient flows through h; where h is 0 (equal rows at a round's
start) the penalty and its gradient are 0. They are 0 for a batch of one sample too: there h is
|x - y|^2, which makes MMD^2 a constant, but its gradient at fixed h grows without bound as y nears
x and throws clients of one sample off. lam=0 is FedAvg bit for bit.

A kernel acts on distances of about sqrt(s), with a slope of up to 0.6 / sqrt(s). Where the logits
of a batch lie close together, as PyTorch's first weights leave them, the narrow fixed kernels
outweigh the cross-entropy and hold a client at the global model; "adaptive" holds some. The
authors' first weights spread the logits (initialisation="truncated_normal" of mnist-cnn). With
PyTorch's, lam must be smaller: 0.01 on MNIST.

Legend: N samples of the batch, C classes.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.api.rules import Batch, Outputs, Rules, View
from raysim.methods.fedavg import FedAvg

Kernel = Literal["fixed", "adaptive"]
FLOOR = 1e-4
"""Floor of the penalty with fixed kernels."""


class FedMmd(FedAvg):
    """FedAvg with the maximum mean discrepancy to the global model's outputs in the objective.

    Helps where clients hold few classes: they keep more of the knowledge in the global model.
    Costs a second model in memory, its forward pass every step, and time and memory that grow
    with the square of the batch; bytes are FedAvg's.
    """

    compares: ClassVar[bool] = True

    lam: float = Field(default=0.1, ge=0, description="strength of the discrepancy")
    kernel: Kernel = Field(
        default="fixed",
        description="19 kernels as in the authors' code, or 5 scaled by the batch's distances",
    )

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the loss plus the discrepancy."""
        return Rules(penalties=(self._discrepancy,))

    def _discrepancy(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        frozen = view.at(view.received, batch.x).logits
        x, y = frozen.flatten(1), outputs.logits.flatten(1)
        squared = squared_mmd(x, y, batch, self.kernel)
        return self.lam * (squared.clamp(min=FLOOR) if self.kernel == "fixed" else squared)


def squared_mmd(x: Tensor, y: Tensor, batch: Batch, kernel: Kernel) -> Tensor:
    """Return the biased squared discrepancy between the rows of x [N, C] and of y [N, C].

    Its derivative is formed with it: autograd would go back through every kernel.
    """
    count = batch.size()
    joint = torch.cat([x, y])  # [2N, C]
    points = joint.detach()
    real = batch.padded_with_zeros(torch.ones_like(points[: len(x), 0]))  # [N], 0 for padding
    signs = torch.cat([real, -real])
    pairs = signs[:, None] * signs  # [2N, 2N], negative between x and y, which is counted twice
    # By differences: |a|^2 + |b|^2 - 2ab would leave rounding errors where the rows are equal.
    apart = points[:, None] - points  # [2N, 2N, C]
    squares = apart.square().sum(-1)
    if kernel == "fixed":
        values, slopes = _sums(squares, -0.5 / sigmas(squares))
    else:
        values, slopes = _adaptive(squares, pairs.abs(), count)
    derivative = 4 * ((pairs * slopes)[:, :, None] * apart).sum(1)  # [2N, C]
    total = (pairs * values).sum() + (derivative * (joint - points)).sum()
    return total / count.square().clamp(min=1)


def sigmas(like: Tensor) -> Tensor:
    """Return the s [19] of the fixed kernels, by operations, which can be recorded."""
    new: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
    tens, fives = partial(torch.logspace, **new), torch.arange(5, 40, 5, **new)
    return torch.cat([tens(-6, 0, 7), fives, tens(2, 6, 5)])


def _adaptive(squares: Tensor, pairs: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of kernels scaled by the mean distance; 0 for a batch of one sample."""
    mean = (squares * pairs).sum() / (2 * count * (2 * count - 1)).clamp(min=1)
    powers = torch.logspace(-2, 2, 5, base=2, dtype=squares.dtype, device=squares.device)
    sums = _sums(squares, -1 / (torch.where(mean > 0, mean, 1.0) * powers))
    values, slopes = (torch.where(count > 1, kernel_sum / 5, 0.0) for kernel_sum in sums)
    return values, slopes


def _sums(squares: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of exp(r d) over the rates r at squared distances d, and its derivative."""
    kernels = (rates[:, None, None] * squares).exp()
    return kernels.sum(0), torch.tensordot(rates, kernels, 1)
