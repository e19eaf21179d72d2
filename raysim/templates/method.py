"""NewMethod: FedAvg that goes a fraction of the way to the mean of the clients' models.

w <- w + lr_server * (mean of the w_k - w)

Source: say here where the formula comes from, and where it departs from it.
"""

from __future__ import annotations

from pydantic import Field

import raysim
from raysim.methods.fedavg import FedAvg


class NewMethod(FedAvg):
    """FedAvg with a step size of the server; 1 is FedAvg."""

    lr_server: float = Field(default=0.5, gt=0, le=1, description="step size of the server")

    def server_update(
        self, now: raysim.Round, state: raysim.ServerState, reduced: raysim.Reduced
    ) -> raysim.ServerState:
        """Return the state of the server after a round; `state` is the state before it."""
        model, mean = state.groups["model"], reduced.means["model"]
        moved = {name: w + self.lr_server * (mean[name] - w) for name, w in model.items()}
        return state.replace(model={name: w.to(model[name].dtype) for name, w in moved.items()})
