"""SCAFFOLD: control variates correct the clients' drift.

Source: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020, algorithm 1 with option II.

    step:    w_k <- w_k - eta * (g + (c - c_k))
    client:  c_k' = c_k - c + (w - w_k) / (steps * eta)
    server:  w <- w + lr_global * mean(w_k - w)      c <- c + m/K * mean(c_k' - c_k)

Both means are uniform over the m clients of the round, whatever `weighting` says. c and the c_k
cover the trainable parameters and start at zero; buffers become their uniform mean. Each client
keeps c_k between its participations. With `local.momentum` the correction is added after the
momentum, w_k <- w_k - eta * (buffer - c_k + c), because option II's c_k includes the buffered
steps. `local.keep`, with a buffer from the client's last round, changes nothing in this.

In the tables, `c_norm` of a round is the norm of c, and `c_norm` of a client the norm of c_k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field
from torch import nn

from raysim.api.columns import Column
from raysim.api.method import Metrics, Round, ServerState
from raysim.api.rules import (
    CHANGE,
    Bases,
    Batch,
    Reduced,
    Rules,
    Trained,
    Transform,
    Upload,
    View,
    Weighting,
)
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import (
    Groups,
    Tensors,
    add_scaled,
    norm,
    norm_tensor,
    only,
    parameter_names,
    zeros_like,
)


class Scaffold(FedAvg):
    """FedAvg with control variates on server and clients.

    Helps where clients' data differ: every step is corrected towards the direction of all clients.
    Costs three more sets of parameters in memory, one of them kept by each client that ever took
    part, an addition a step, and twice FedAvg's bytes both ways.
    """

    columns: ClassVar[Sequence[Column]] = (Column("c_norm"),)

    weighting: ClassVar[Weighting | None] = "uniform"
    bases: ClassVar[Bases | None] = {"model": "model", "c": CHANGE}
    server_rate: ClassVar[str] = "lr_global"

    lr_global: float = Field(default=1.0, gt=0, description="step of the server")
    # SGD to its last step: c_k is a mean of gradients, as steps over the learning rate are
    needs_local: ClassVar[Mapping[str, object]] = {"optimizer": "sgd", "tail_average": 0.0}

    def init(self, network: nn.Module) -> ServerState:
        """Start with the server's control variate c at zero."""
        model = super().init(network).groups["model"]
        return ServerState({"model": model, "c": zeros_like(only(model, parameter_names(network)))})

    def client_init(self, state: ServerState) -> Groups:
        """Start with a client's control variate c_k at zero."""
        return {"c": zeros_like(state.groups["c"])}

    def rules(self) -> Rules:
        """Return the rules of local training: SGD along the corrected gradient."""
        return Rules(transforms=(CORRECTION,), finish=_finish)

    def broadcast(self, state: ServerState) -> Groups:
        """Return the model and the server's control variate."""
        return {"model": state.groups["model"], "c": state.groups["c"]}

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Move the model and c by their mean changes."""
        model, c = state.groups["model"], state.groups["c"]
        mean, change = reduced.means["model"], reduced.means["c"]
        share = len(reduced.clients) / now.clients
        moved = {n: model[n] + now.server_lr * (mean[n] - model[n]) for n in c}
        c_after = {n: c[n] + share * change[n] for n in c}
        return state.replace(model={**mean, **moved}, c=c_after)

    def metrics(self, state: ServerState) -> Metrics:
        """Return the norm of c."""
        return {"c_norm": norm(state.groups["c"])}


def _correction(view: View) -> Tensors:
    return add_scaled(view.broadcast["c"], view.state["c"], -1)


def _correct(
    view: View, gradients: Tensors, batch: Batch, state: Tensors
) -> tuple[Tensors, Tensors]:
    return add_scaled(gradients, state), state


CORRECTION = Transform("scaffold", _correct, _correction, after_momentum=True, pull=0.0)


def _finish(view: View, trained: Trained) -> Upload:
    c, c_k = view.broadcast["c"], view.state["c"]
    scale = 1 / (trained.steps * trained.lr)
    change = {n: (view.start[n] - view.params[n].detach()) * scale - c[n] for n in c}
    c_k_after = {n: c_k[n] + change[n] for n in c}
    return Upload(
        sums={"model": view.params, "c": change},
        state={"c": c_k_after},
        metrics={"c_norm": norm_tensor(c_k_after)},
    )
