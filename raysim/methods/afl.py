"""AFL: agnostic federated learning, which minimises the loss of the worst mixture of the clients.

Source: Mohri, Sivek and Suresh, "Agnostic Federated Learning", ICML 2019; the code in
github.com/litian96/fair_flearn, `flearn/trainers/afl.py`, as its authors published none.

    objective:  min over w of max over lambda on the simplex of sum_k lambda_k F_k(w)
    round:      F_k = the loss of all samples of client k at w
                w <- w + sum_k lambda_k (w_k - w)
                lambda <- the point of the simplex nearest to lambda + lr_lambda (F_1, ..., F_K)

With `local.steps=1` w_k - w is -eta times a gradient, which is the paper's step; FedTorch's AFL
takes more local steps. All clients take part in every round; DRFA samples clients. lambda starts at
1/K. As in the paper and the code, clients deploy the mean of w over the rounds so far
(`deploy=average`), while training goes on from the last w; FedTorch deploys the last w. Buffers
become the uniform mean, and are deployed as they are. Deviations: F_k is the loss of all samples,
not of one batch; a client that is lost in a round adds nothing to its lambda.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from raysim.api.method import Passes, Round, ServerState
from raysim.api.rules import Rules, Trained, Upload, View
from raysim.methods.reweighted import (
    LAMBDA,
    LOSS,
    KeepsWeights,
    places,
    projected,
    send_scaled,
    starting_loss,
)
from raysim.numbers.tensors import Tensors, only

AVERAGE = "average"


class Afl(KeepsWeights):
    """FedAvg of all clients by weights that rise with their losses.

    Helps where no client may be left behind, with few clients that can all take part: silos, not
    phones. Costs a forward pass over a client's samples a round, four bytes up and down, and one
    more model on the server.
    """

    needs_everyone: ClassVar[str] = "drfa"

    lr_lambda: float = Field(default=0.1, ge=0, description="step of the clients' weights")
    deploy: Literal["average", "last"] = Field(
        default="average", description="the mean of the models of all rounds, or the last one"
    )

    @property
    def own_server(self) -> str:  # type: ignore[override]  # a constant of other methods
        """Words for the mean of its models, if it is deployed."""
        return "deploys the mean of the models it makes" if self.deploy == "average" else ""

    def rules(self) -> Rules:
        """Return the rules of local training: SGD, and the loss before it."""
        return Rules(finish=_finish)

    def deployed(self, state: ServerState) -> Tensors:
        """Return the mean of the models so far, or the last one."""
        return {**state.groups["model"], **state.groups.get(AVERAGE, {})}

    def round(self, now: Round, state: ServerState) -> Passes:
        """Train all clients, weighted by lambda; move lambda by their losses."""
        first = np.full(len(now.everyone), 1 / len(now.everyone))
        weights = self.kept_weights(state, first)
        scaled = len(now.cohort) * weights[places(now, now.cohort)]
        weights_now = dict(zip(now.cohort, scaled.tolist(), strict=True))
        reduced = yield self.weighted_pass(now, state, weights_now)
        losses = np.zeros_like(weights)
        losses[places(now, reduced.clients)] = reduced.scalars[LOSS]
        moved = projected(weights + self.lr_lambda * losses)
        after = self.server_update(now, state, reduced)
        groups = {LAMBDA: {LAMBDA: torch.from_numpy(moved)}}
        if self.deploy == "average":
            model = only(after.groups["model"], reduced.means["d"])
            before = state.groups.get(AVERAGE, model)
            groups[AVERAGE] = {n: t + (model[n] - t) / (now.number + 1) for n, t in before.items()}
        after = after.replace(**groups)
        return after, self.metrics(after)


def _finish(view: View, trained: Trained) -> Upload:
    return replace(send_scaled(view, trained), scalars={LOSS: starting_loss(view, trained)})
