"""TERM: tilted empirical risk minimisation over clients; larger losses weigh exponentially more.

Source: Li, Beirami, Sanjabi and Smith, "Tilted Empirical Risk Minimization", ICLR 2021; the
authors' code, github.com/litian96/TERM, `fair_flearn/flearn/trainers/tilting.py`.

    objective:  1/t log(1/K sum_k e^(t F_k))
    pass 1:     F_k = the loss of all samples of client k at w, of the m clients of the round
    server:     a_k = e^(t (F_k - max F))        Z <- Z/2 + (mean of the a_k)/2
    pass 2:     client k sends a_k/Z (w_k - w)
    server:     w <- w + mean of these

As in the code Z lasts from round to round though max F differs between rounds: a_k/Z is the paper's
weight where they do not. Deviations: Z starts at its first mean, not at half of it, and changes are
averaged over m once, where the code divides their weights by m and averages over m again; so t=0 is
FedAvg with `weighting=uniform`, to rounding. Pass 1 is a separate trip, because no client knows max
F; the code's server has each client's model instead. Weights are uniform before the tilt, buffers
become the uniform mean. A temperature, class weights and label smoothing are a part of F_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from raysim.api.columns import Column
from raysim.api.method import Metrics, Passes, Round, ServerState
from raysim.api.rules import Pass, Rules, nothing_received
from raysim.methods.reweighted import LOSS, Reweighted, send_loss

Z = "z"


class Term(Reweighted):
    """FedAvg with the largest weights for the clients with the largest losses of a round.

    Helps where the mean hides clients that the model fits badly. A larger t comes closer to the
    largest loss alone. Costs a forward pass over a client's samples a round, in a short trip before
    the training, and four bytes up and down.
    """

    columns: ClassVar[Sequence[Column]] = (Column(Z),)

    t: float = Field(default=0.1, ge=0, description="tilt to large losses; 0 is FedAvg")

    def round(self, now: Round, state: ServerState) -> Passes:
        """Gather the losses at the model, then train the cohort, weighted by them."""
        model = self.broadcast(state)
        heard = yield Pass(now.cohort, model, Rules(finish=send_loss), bases={})
        losses = heard.scalars[LOSS]
        tilted = np.exp(self.t * (losses - losses.max()))
        z = float(tilted.mean())
        if Z in state.groups:
            z = z / 2 + float(state.groups[Z][Z]) / 2
        pass_ = self.weighted_pass(now, state, dict(zip(heard.clients, tilted / z, strict=True)))
        reduced = yield replace(pass_, bytes_down=nothing_received, draws=0)  # FedAvg's batches
        after = self.server_update(now, state, reduced)
        after = after.replace(z={Z: torch.tensor(z, dtype=torch.float64)})
        return after, self.metrics(after)

    def metrics(self, state: ServerState) -> Metrics:
        """Return Z."""
        return {Z: float(state.groups[Z][Z])}
