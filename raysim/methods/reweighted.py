"""Clients that scale their uploads by weights of the server, for methods that set these.

The weights follow the losses that clients have where they start, and may be kept on the simplex.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from raysim.api.columns import Column
from raysim.api.method import Metrics, Round, ServerState
from raysim.api.rules import CHANGE, Bases, Pass, Reduced, Rules, Trained, Upload, View, Weighting
from raysim.methods.fedavg import FedAvg
from raysim.methods.mifl import logits_of
from raysim.numbers.arrays import Floats, Integers
from raysim.numbers.tensors import add_scaled, at_least_float32

LOSS = "start_loss"
"""Name of the loss at a client's start."""
WEIGHT = "weight"
"""Group that a client alone receives: its weight."""
LAMBDA = "lambda"
"""Group of the server's state, with its one tensor: the weights of all clients."""


class Reweighted(FedAvg):
    """FedAvg of changes by weights that a method gives to clients.

        client:  d_k = s_k * (w_k - w)
        server:  w <- w + 1/m sum over the m clients of d_k        buffers become the mean

    Helps methods that say how much each client counts. Costs four bytes more down.
    """

    needs_mean: ClassVar[str] = "changes times their weights"
    needs_sample_losses: ClassVar[bool] = True
    columns: ClassVar[Sequence[Column]] = (Column("lambda_max"), Column("lambda_min"))
    weighting: ClassVar[Weighting | None] = "uniform"
    bases: ClassVar[Bases | None] = {"d": CHANGE, "buffers": "model"}

    def rules(self) -> Rules:
        """Return the rules of local training: SGD; clients send the scaled change."""
        return Rules(finish=send_scaled)

    def weighted_pass(self, now: Round, state: ServerState, weights: Mapping[int, float]) -> Pass:
        """Return the training pass of clients, by the weights s_k that they scale changes with."""
        personal = {
            k: {WEIGHT: {WEIGHT: torch.tensor(s, dtype=torch.float32)}} for k, s in weights.items()
        }
        return replace(self.training_pass(now, state), clients=tuple(weights), personal=personal)

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass] | None:
        """Return the training pass: a weight leaves the client's own model as it is."""
        return [self.weighted_pass(now, state, dict.fromkeys(now.cohort, 1.0))]

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Move the model by the mean scaled change."""
        model, d = state.groups["model"], reduced.means["d"]
        moved = add_scaled({n: model[n] for n in d}, d)
        return state.replace(model={**model, **reduced.means.get("buffers", {}), **moved})


class KeepsWeights(Reweighted):
    """FedAvg of changes by weights lambda of all clients, which the server keeps."""

    def kept_weights(self, state: ServerState, first: Floats) -> Floats:
        """Return lambda, by place among the clients that may take part; `first` before round 1."""
        return state.groups[LAMBDA][LAMBDA].numpy() if LAMBDA in state.groups else first

    def metrics(self, state: ServerState) -> Metrics:
        """Return the largest and the smallest weight of a client."""
        weights = state.groups[LAMBDA][LAMBDA]
        return {"lambda_max": float(weights.max()), "lambda_min": float(weights.min())}


def send_scaled(view: View, trained: Trained) -> Upload:
    """Send the change of the trained parameters times the client's weight, and the buffers."""
    weight = float(view.personal[WEIGHT][WEIGHT])
    change = {n: weight * (view.params[n].detach() - view.start[n]) for n in view.trainable}
    buffers = {name: t for name, t in view.params.items() if name not in change}
    return Upload(sums={"d": change, "buffers": buffers})


def places(now: Round, clients: Sequence[int]) -> Integers:
    """Return the places [n] of clients among those that may take part; lambda is in this order."""
    return np.searchsorted(np.asarray(now.everyone), clients)


def starting_loss(view: View, trained: Trained) -> float:
    """Return F_k: the mean loss that is minimised, of all samples where the client started.

    It is taken in evaluation mode, at the client's temperature, without penalties or weight decay.
    """
    logits = at_least_float32(logits_of(view, view.start, trained.data))
    return float(trained.data.loss(view.scaled(logits)))


def send_loss(view: View, trained: Trained) -> Upload:
    """Send the loss alone."""
    return Upload(scalars={LOSS: starting_loss(view, trained)})


def projected(values: Floats) -> Floats:
    """Return the point of the simplex that is nearest to values [n].

    Source: Duchi, Shalev-Shwartz, Singer and Chandra, "Efficient Projections onto the l1-Ball for
    Learning in High Dimensions", ICML 2008, figure 1: max(v - theta, 0), where theta is such that
    the sum is 1.
    """
    ordered = np.sort(values - values.max())[::-1]  # a common shift changes nothing
    thetas = (np.cumsum(ordered) - 1) / np.arange(1, len(ordered) + 1)
    theta = thetas[ordered > thetas][-1]
    weights: Floats = np.maximum(values - values.max() - theta, 0)
    return weights
