"""DRFA: distributionally robust federated averaging, AFL of sampled clients and many local steps.

Source: Deng, Kamani and Mahdavi, "Distributionally Robust Federated Averaging", NeurIPS 2020; the
authors' code, github.com/MLOPTPSU/FedTorch.

    server:  u drawn from (0, 1]
    pass 1, the cohort:   client k of tau_k steps sends K lambda_k (w_k - w), and w_k', its model
                          after ceil(u tau_k) of them
    server:               w <- w + mean over the m clients of K lambda_k (w_k - w)
                          w' <- mean over them of w_k'
    pass 2, m newly drawn clients:  F_k = the loss of all samples of client k at w'
    server:  v_k = K/m F_k for these m, 0 for others
             lambda <- the point of the simplex nearest to lambda + gamma decay^(r+1) tau v
             lambda_k <- max(lambda_k, floor), then divided by their sum

r counts rounds from 0, tau is the mean of the cohort's tau_k; lambda starts at n_k/n. Paper: the
cohort is drawn by lambda, and averaged uniformly; the code, as here, draws it uniformly and weighs
changes by K lambda_k/m, which need not add up to 1. gamma is fixed in the paper, and it has no
floor: `decay=1`, `floor=0`. Deviations from the code: w' is drawn after 1 to tau steps, as in the
paper, not after 0 to tau - 2; F_k is the loss of all samples, not of one batch; buffers of w' are
the mean of the final ones; losses that are lost in pass 2 add nothing.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from raysim.api.method import Passes, Round, ServerState
from raysim.api.rules import (
    CHANGE,
    Bases,
    Batch,
    Pass,
    Reduced,
    Rules,
    Trained,
    Transform,
    Upload,
    View,
)
from raysim.methods.reweighted import (
    LAMBDA,
    LOSS,
    KeepsWeights,
    places,
    projected,
    send_loss,
    send_scaled,
)
from raysim.numbers.arrays import Floats
from raysim.numbers.tensors import Tensors, number_beside, only

SNAPSHOT, STEP = "snapshot", "step"
COUNT = "steps so far"
"""Name next to names of parameters, which have no spaces."""


class Drfa(KeepsWeights):
    """FedAvg of sampled clients by weights that rise with their losses.

    Helps where no client may be left behind, and not all can take part in every round. Costs two
    models up, and one down to m further clients, which each take a forward pass over their samples;
    on a client one more set of parameters, and a pass over them a step.
    """

    bases: ClassVar[Bases | None] = {"d": CHANGE, "buffers": "model", SNAPSHOT: "model"}

    gamma: float = Field(default=0.1, ge=0, description="step of the clients' weights")
    decay: float = Field(default=0.9, gt=0, le=1, description="factor of gamma, every round")
    floor: float = Field(
        default=1e-3,
        ge=0,
        lt=1,
        description="least weight of a client, before the weights are divided by their sum",
    )

    def rules(self) -> Rules:
        """Return the rules of local training: SGD; clients keep the model of one step."""
        return Rules(transforms=(KEEP,), finish=_finish)

    def round(self, now: Round, state: ServerState) -> Passes:
        """Train the cohort, weighted by lambda; move lambda by losses of further clients."""
        samples = np.asarray(now.samples)[np.asarray(now.everyone)]
        weights = self.kept_weights(state, samples / samples.sum())
        scaled = len(weights) * weights[places(now, now.cohort)]
        weights_now = dict(zip(now.cohort, scaled.tolist(), strict=True))
        reduced = yield self._with_steps(now, self.weighted_pass(now, state, weights_now))
        after = self.server_update(now, state, reduced)
        model = {**after.groups["model"], **reduced.means[SNAPSHOT]}
        heard = yield Pass(now.sample(1), {"model": model}, Rules(finish=send_loss), bases={})
        steps = float(np.mean([now.steps(client) for client in now.cohort]))
        moved = self._moved(now, weights, heard, steps)
        after = after.replace(**{LAMBDA: {LAMBDA: torch.from_numpy(moved)}})
        return after, self.metrics(after)

    def deployment_after(self, now: Round, state: ServerState) -> list[Pass]:
        """Return the training pass: weights leave the client's own model as it is."""
        pass_ = self.weighted_pass(now, state, dict.fromkeys(now.cohort, 1.0))
        return [self._with_steps(now, pass_)]

    def _with_steps(self, now: Round, pass_: Pass) -> Pass:
        """Return a training pass with the step after which each client keeps its model."""
        u = 1 - float(torch.rand((), generator=now.generator("step"), dtype=torch.float64))
        personal = {
            client: {**groups, STEP: {STEP: torch.tensor(float(ceil(u * now.steps(client))))}}
            for client, groups in pass_.personal.items()
        }
        return replace(pass_, personal=personal)

    def _moved(self, now: Round, weights: Floats, heard: Reduced, steps: float) -> Floats:
        v = np.zeros_like(weights)
        v[places(now, heard.clients)] = len(weights) / len(heard.clients) * heard.scalars[LOSS]
        moved = projected(weights + self.gamma * self.decay ** (now.number + 1) * steps * v)
        moved = np.maximum(moved, self.floor)
        lifted: Floats = moved / moved.sum()
        return lifted


def _init(view: View) -> Tensors:
    return {
        COUNT: number_beside(view.params),
        **{n: view.params[n].detach().clone() for n in view.trainable},
    }


def _keep(view: View, gradients: Tensors, batch: Batch, state: Tensors) -> tuple[Tensors, Tensors]:
    is_step = state[COUNT] == view.personal[STEP][STEP]
    kept = {n: torch.where(is_step, view.params[n].detach(), state[n]) for n in view.trainable}
    return gradients, {COUNT: state[COUNT] + 1, **kept}


KEEP = Transform("drfa", _keep, _init, pull=0.0)
"""Keeps the parameters after a step, at the start of the next one; the gradient stays."""


def _finish(view: View, trained: Trained) -> Upload:
    upload = send_scaled(view, trained)
    kept = trained.states[KEEP.name]
    if trained.steps == int(view.personal[STEP][STEP]):  # no step came after it
        kept = view.params
    return replace(upload, sums={**upload.sums, SNAPSHOT: only(kept, view.trainable)})
