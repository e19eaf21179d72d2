"""FedAT: clients of similar speed form tiers; each tier has its own rounds, and tiers overlap.

Source: Chai, Chen, Anwar, Zhao, Cheng and Rangwala, "FedAT: A High-Performance and
Communication-Efficient Federated Learning System with Asynchronous Tiers", SC 2021.

    client:  loss + mu/2 * sum over all trainable parameters of (w_k - w)^2     the paper's lambda
    tier m:  w_m <- sum of n_k/n w_k            over its cohort, which starts from the newest w
    server:  w <- sum over m of T_(M+1-m)/T w_m          T_m updates by tier m so far, T by all

Tier 1 is the fastest of M = `tiers`; all have as many clients, split by the time of their work on
the devices of the run's clock. A tier draws a share of `concurrency` from its clients, waits for
all of them, and makes a version of the model; no tier waits for another. All w_m are the initial
model at first. The update that arrives is counted in T_m and T, so that a tier's model weighs
nothing before the tier that mirrors it has arrived once. Floating-point buffers are averaged like
parameters, integer buffers take the maximum. With tiers=1 it is FedProx bit for bit.

The paper has 5 tiers of 20 clients, cohorts of 10 (concurrency=50) and lambda = 0.4. Deviations:
tiers are made once, from the known times, not from measured ones; models are not compressed; where
fewer clients of a tier are available than it draws, it trains with those.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.api.columns import Column
from raysim.api.method import Asynchrony, Metrics, Round, ServerState
from raysim.api.rules import Reduced
from raysim.methods.fedprox import FedProx
from raysim.numbers.tensors import as_real, like
from raysim.user_input.limits import Count


class FedAt(FedProx):
    """FedProx in tiers of clients of similar speed; the models of slow tiers weigh most.

    Helps where devices differ in speed: no client waits for other tiers, and the model does not
    lean to the fast ones. Costs the server a model for each tier, and a client FedProx's pass over
    the model. Bytes of an update are FedAvg's.
    """

    own_server: ClassVar[str] = "makes each model of its tiers' models"
    own_round: ClassVar[str] = "a version of the model, made of the updates of one tier"
    columns: ClassVar[Sequence[Column]] = (Column("tier"),)

    mu: float = Field(default=0.4, ge=0, description="strength of the proximal term")
    tiers: Count = Field(default=5, description="M, parts of the clients, by speed")
    concurrency: Count | None = Field(
        default=None,
        description="clients of all tiers that train at once; none: fraction x clients",
    )

    def asynchrony(self, size: int) -> Asynchrony:
        """Return the overlap of rounds, in tiers."""
        return Asynchrony(None, self.concurrency or size, tiers=self.tiers)

    def init(self, network: nn.Module) -> ServerState:
        """Start from the network as it was built, in all tiers."""
        model = super().init(network).groups["model"]
        numbers = range(1, self.tiers + 1)
        groups = {"model": model, **{_model_of(number): model for number in numbers}}
        return ServerState(groups, {"tier": 0, **{_updates_of(number): 0 for number in numbers}})

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Replace the model of the tier that arrives; average the models of all tiers."""
        arrived = 1 + reduced.tiers[reduced.clients[0]]
        groups = {**state.groups, _model_of(arrived): reduced.means["model"]}
        updates = int(state.info[_updates_of(arrived)]) + 1
        info = {**state.info, "tier": arrived, _updates_of(arrived): updates}
        counts = [int(info[_updates_of(number)]) for number in range(self.tiers, 0, -1)]
        models = [groups[_model_of(number)] for number in range(1, self.tiers + 1)]
        groups["model"] = {
            name: _mean([model[name] for model in models], counts) for name in groups["model"]
        }
        return ServerState(groups, info)

    def metrics(self, state: ServerState) -> Metrics:
        """Return the tier that arrived, 1 to M."""
        return {"tier": int(state.info["tier"])}


def _mean(tensors: list[Tensor], weights: list[int]) -> Tensor:
    """Return the weighted mean of tensors of one shape; of integers, their maximum."""
    reals = [as_real(tensor) for tensor in tensors]
    if not reals[0].is_floating_point():
        return torch.stack(reals).amax(0)
    terms = [w / sum(weights) * t.double() for t, w in zip(reals, weights, strict=True) if w]
    return like(reduce(add, terms).to(reals[0].dtype), tensors[0])


def _model_of(number: int) -> str:
    return f"tier_{number}"


def _updates_of(number: int) -> str:
    return f"updates_{number}"
