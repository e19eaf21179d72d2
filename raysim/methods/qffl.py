"""q-FFL: clients with larger losses weigh more, by a power of the loss (q-FedAvg).

Source: Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020,
algorithm 2; the authors' code, github.com/litian96/fair_flearn.

    objective:  sum_k F_k^(q+1) / (q+1)
    client:     F_k = the loss of all its samples at w, + 1e-10      G_k = (w - w_k) / eta
                d_k = F_k^q G_k      h_k = q F_k^(q-1) ||G_k||^2 + F_k^q / eta
    server:     w <- w - sum_k d_k / sum_k h_k

h_k bounds the curvature of F_k^(q+1) / (q+1), given 1/eta for the curvature of F_k, so that a
local.lr tuned for q=0 serves every q. q=0 is FedAvg with `weighting=uniform`, to rounding. All sums
are uniform over the clients of the round; d_k covers the trainable parameters, and buffers become
the mean. The server sees sums alone. A temperature, class weights and label smoothing are a part of
F_k, penalties of a chain and weight decay are not. The code's default is q=0; its README runs 0.001
to 5 by the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import ClassVar

import torch
from pydantic import Field

from raysim.api.method import Round, ServerState
from raysim.api.rules import CHANGE, Bases, Reduced, Rules, Trained, Upload, View, Weighting
from raysim.errors import RunError
from raysim.methods.fedavg import FedAvg
from raysim.methods.reweighted import LOSS, starting_loss
from raysim.numbers.tensors import add_scaled, norm, number_beside

FLOAT32 = torch.finfo(torch.float32)
LEAST = 1e-10
"""Added to F_k, because its powers below 0 must be finite."""


class Qffl(FedAvg):
    """FedAvg of steps that clients with larger losses take further.

    Helps where the mean hides clients that the model fits badly. A larger q makes the losses more
    even, at some cost of the mean. Costs a forward pass over a client's samples a round, a
    further set of parameters in memory, and four bytes up.
    """

    needs_mean: ClassVar[str] = (
        "changes, and bounds of their curvature, times powers of their losses"
    )
    needs_sample_losses: ClassVar[bool] = True
    weighting: ClassVar[Weighting | None] = "uniform"
    bases: ClassVar[Bases | None] = {"d": CHANGE, "buffers": "model"}

    q: float = Field(default=1.0, ge=0, le=100, description="power of the loss; 0 is FedAvg")
    # SGD: G_k and 1/eta are of its steps
    needs_local: ClassVar[Mapping[str, object]] = {"optimizer": "sgd"}

    def rules(self) -> Rules:
        """Return the rules of local training: SGD; clients send the scaled change."""
        return Rules(finish=self._finish)

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Move the model by the sum of the d_k, divided by the sum of the h_k.

        Raises:
            RunError: the powers of the losses are all too small for float32.
        """
        model, d, h = state.groups["model"], reduced.means["d"], float(reduced.means["h"]["h"])
        if h < FLOAT32.tiny:
            raise self._beyond("the losses of all clients are too small")
        moved = add_scaled({n: model[n] for n in d}, d, -1 / h)
        return state.replace(model={**model, **reduced.means.get("buffers", {}), **moved})

    def _finish(self, view: View, trained: Trained) -> Upload:
        loss = starting_loss(view, trained) + LEAST
        if loss <= 0:
            raise RunError(
                f"its loss is {loss:g} before it trains: method.name=qffl takes a power of it,"
                " which needs a loss that is never below 0"
            )
        q, eta = self.q, trained.lr
        change = {n: (view.start[n] - view.params[n].detach()) / eta for n in view.trainable}
        if q * log(loss) > log(FLOAT32.max):
            raise self._beyond(f"a loss of {loss:.4g} is too large")
        h = q * loss ** (q - 1) * norm(change) ** 2 + loss**q / eta
        buffers = {name: t for name, t in view.params.items() if name not in change}
        return Upload(
            sums={
                "d": {name: loss**q * tensor for name, tensor in change.items()},
                "buffers": buffers,
                "h": {"h": number_beside(change, h)},
            },
            metrics={LOSS: loss},
        )

    def _beyond(self, why: str) -> RunError:
        return RunError(
            f"method.q={self.q:g}: its update is out of range: {why} for this power in float32;"
            " choose a smaller q"
        )
