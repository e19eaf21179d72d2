"""Momentum federated averaging (MFA): the momentum is averaged and sent like the model.

Source: Liu, Chen, Chen and Zhang, "Accelerating Federated Learning via Momentum Gradient Descent",
IEEE TPDS 31(8), 2020; a baseline of Uddin et al., "Mutual Information Driven Federated
Learning", IEEE TPDS 2021.

    step:    d_k <- gamma * d_k + g      w_k <- w_k - eta * d_k      d_k starts at the broadcast d
    server:  w <- sum_k p_k w_k          d <- sum_k p_k d_k          p_k as in FedAvg

d covers the trainable parameters and starts at zero. Deviation: the source trains all clients
every round; here clients outside the cohort take up the averaged d when they are next sampled.
`local.momentum`, which starts at zero every round or, with `local.keep`, goes on from the client's
last one, comes on top where it is set: its gradients are the d_k. gamma is chosen: MIFL prints
none, and 0.9 at its learning rate of 0.1 is an effective step of 1.0. gamma=0 is FedAvg bit for
bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import nn

from raysim.api.method import ServerState
from raysim.api.rules import Bases, Batch, Rules, Trained, Transform, Upload, View
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import Groups, Tensors, add_scaled, only, parameter_names, zeros_like


class Momentum(FedAvg):
    """FedAvg with momentum that is kept from round to round.

    Helps where rounds are short and plain SGD is slow to get going. Costs one more set of
    parameters in memory, one more pass over them a step, and twice FedAvg's bytes both ways.
    """

    bases: ClassVar[Bases | None] = {"model": "model", "d": "d"}

    gamma: float = Field(default=0.5, ge=0, lt=1, description="decay of the momentum")
    # SGD: the averaged d is the direction of its steps
    needs_local: ClassVar[Mapping[str, object]] = {"optimizer": "sgd"}

    def init(self, network: nn.Module) -> ServerState:
        """Start with the momentum d at zero."""
        model = super().init(network).groups["model"]
        return ServerState({"model": model, "d": zeros_like(only(model, parameter_names(network)))})

    def rules(self) -> Rules:
        """Return the rules of local training: SGD along the momentum."""
        transform = Transform("momentum", self._accelerate, _broadcast_momentum)
        return Rules(transforms=(transform,), finish=_finish)

    def broadcast(self, state: ServerState) -> Groups:
        """Return the model and the momentum; both are averaged."""
        return {"model": state.groups["model"], "d": state.groups["d"]}

    def _accelerate(
        self, view: View, gradients: Tensors, batch: Batch, state: Tensors
    ) -> tuple[Tensors, Tensors]:
        momentum = add_scaled(gradients, state, self.gamma)
        return momentum, momentum


def _broadcast_momentum(view: View) -> Tensors:
    return view.broadcast["d"]


def _finish(view: View, trained: Trained) -> Upload:
    return Upload(sums={"model": view.params, "d": trained.states["momentum"]})
