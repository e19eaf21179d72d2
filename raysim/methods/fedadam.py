"""FedAdam: Adam on the server, along the mean change of the clients' models.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, "Adaptive Federated
Optimization", ICLR 2021, algorithm 2 (FedAdam).

    Delta <- sum_k p_k w_k - w       p_k as in FedAvg
    m <- beta1 * m + (1 - beta1) * Delta
    v <- beta2 * v + (1 - beta2) * Delta^2
    w <- w + lr_server * m / (sqrt(v) + tau)

Without bias correction, as in the paper; m starts at 0, v at tau^2. m and v cover the trainable
parameters, complex ones as pairs of reals; buffers become the mean. lr_server is constant, or
follows `server.schedule`. Deviation: p_k follow `weighting`, where algorithm 2 counts clients alike
(weighting=uniform).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import nn

from raysim.core.method import Round, ServerState
from raysim.core.rules import Reduced
from raysim.core.tensors import as_real, like, only, parameter_names
from raysim.methods.fedavg import FedAvg


class FedAdam(FedAvg):
    """FedAvg with Adam as the optimiser of the server.

    Helps where gradients differ in scale, as with embeddings and rare classes, and where plain
    averaging is slow. Costs two more sets of parameters on the server and none on a client; bytes
    are FedAvg's.
    """

    server_rate: ClassVar[str] = "lr_server"

    lr_server: float = Field(default=0.01, gt=0, description="learning rate of the server")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the mean change m")
    beta2: float = Field(default=0.99, ge=0, lt=1, description="decay of the mean square v")
    tau: float = Field(default=1e-3, gt=0, description="degree of adaptivity; sqrt(v) starts here")

    def init(self, network: nn.Module) -> ServerState:
        """Start with m at zero and v at tau^2."""
        state = super().init(network)
        params = only(state.groups["model"], parameter_names(network))
        return state.replace(
            m={name: torch.zeros_like(as_real(tensor)) for name, tensor in params.items()},
            v={name: torch.full_like(as_real(t), self.tau**2) for name, t in params.items()},
        )

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Take a step of Adam along the mean change."""
        model, mean = state.groups["model"], reduced.means["model"]
        m, v, moved = {}, {}, {}
        for name, before in state.groups["m"].items():
            old = as_real(model[name])
            delta = as_real(mean[name]) - old
            m[name] = self.beta1 * before + (1 - self.beta1) * delta
            v[name] = self.beta2 * state.groups["v"][name] + (1 - self.beta2) * delta**2
            new = old + now.server_lr * m[name] / (v[name].sqrt() + self.tau)
            moved[name] = like(new, model[name])
        return state.replace(model={**mean, **moved}, m=m, v=v)
