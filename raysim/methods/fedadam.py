"""FedAdam: the clients of FedAvg, and Adam on the server.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, "Adaptive Federated
Optimization", ICLR 2021, algorithm 2 (FedAdam).

    Delta <- sum_k p_k w_k - w       p_k as in FedAvg
    m <- beta1 * m + (1 - beta1) * Delta
    v <- beta2 * v + (1 - beta2) * Delta^2
    w <- w + lr_server * m / (sqrt(v) + tau)

A name for `server.name=adam` with `method.name=fedavg`, bit for bit; other methods go with that
rule, too. Without bias correction, as in the paper; m starts at 0, v at tau^2. m and v cover the
trainable parameters, complex ones as pairs of reals; buffers become the mean. lr_server is
constant, or follows `server.schedule`. Deviation: p_k follow `weighting`, where algorithm 2 counts
clients alike (weighting=uniform).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from raysim.api.server import SERVER_RULES, ServerRule
from raysim.methods.fedavg import FedAvg


class FedAdam(FedAvg):
    """FedAvg with Adam as the optimiser of the server.

    Helps where gradients differ in scale, as with embeddings and rare classes, and where plain
    averaging is slow. Costs two more sets of parameters on the server and none on a client; bytes
    are FedAvg's.
    """

    server_rate: ClassVar[str] = "lr_server"
    own_server: ClassVar[str] = "takes steps of Adam already"

    lr_server: float = Field(default=0.01, gt=0, description="learning rate of the server")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the mean change m")
    beta2: float = Field(default=0.99, ge=0, lt=1, description="decay of the mean square v")
    tau: float = Field(default=1e-3, gt=0, description="degree of adaptivity; sqrt(v) starts here")

    @property
    def server_rule(self) -> ServerRule:
        """Adam with its settings."""
        settings = {"lr": self.lr_server, "beta1": self.beta1, "beta2": self.beta2, "tau": self.tau}
        return SERVER_RULES.get("adam").model_validate(settings)
