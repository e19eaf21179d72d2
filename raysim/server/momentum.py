"""Momentum: the server goes on in the direction of earlier rounds (FedAvgM).

Source: Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", arXiv:1909.06335, 2019.

    Delta <- sum_k p_k w_k - w       p_k as in FedAvg
    m <- beta * m + Delta            m starts at 0
    w <- w + lr * m

beta=0 is a step of the server with a learning rate. m covers the trainable parameters, complex ones
as pairs of reals; buffers become the mean.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from raysim.api.server import ServerRule
from raysim.numbers.tensors import Groups, Tensors, add_scaled


class ServerMomentum(ServerRule):
    """Momentum of the server, along the mean change of the clients' models.

    Helps where clients' data differ: the changes of cohorts that hold other classes even out. Costs
    one more set of parameters on the server and none on a client; bytes stay.
    """

    keeps: ClassVar[tuple[str, ...]] = ("m",)

    lr: float = Field(default=1.0, gt=0, description="learning rate of the server")
    beta: float = Field(default=0.9, ge=0, lt=1, description="decay of the momentum m")

    def step(self, params: Tensors, mean: Tensors, kept: Groups) -> tuple[Tensors, Groups]:
        """Take a step along the momentum."""
        m = add_scaled(add_scaled(mean, params, -1), kept["m"], self.beta)
        return add_scaled(params, m, self.lr), {"m": m}
