"""APFL: each client deploys a mixture of a private model and the global one.

Source: Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning", arXiv:2003.13461,
2020, algorithm 1; the authors' code, github.com/MLOPTPSU/FedTorch.

    w_k as in FedAvg. v and alpha stay on the client; after each step of w_k, on its batch:

    mixture="weights":  v <- v - eta * alpha * u       u = g(alpha * v + (1 - alpha) * w_k)
    mixture="outputs":  v <- v - eta * g_v             u = alpha * g_v + (1 - alpha) * g_w
    mixture="models":   v <- v - eta * g(v)            u = alpha * g(v) + (1 - alpha) * g(w_k)
                        and at the end of the round    v <- alpha * v + (1 - alpha) * w_k

    adaptive: then alpha <- alpha - eta * (<v - w_k, u> + decay * alpha), within [0, 1]

    deploy:   alpha * v + (1 - alpha) * w, w as it was broadcast; with "models" v

g_v and g_w are the gradients, at v and at w_k, of the objective at the logits
alpha * f_v + (1 - alpha) * f_w, which in a chain has the criterion and the penalties of the others.
"weights" is the paper's form, "outputs" the authors' code's, "models" PFLlib's. As in both codes,
w_k takes its step first, and `decay` is 0.02; in the paper the gradient is at the w_k before the
step, and decay is 0. alpha is adapted in the first step of a client's round, as the authors' code
does, with "models" in every step, by the v before its step; the codes take the v after it.

v is the network as it was built, and alpha `alpha`, until a client first takes part. v has trained
parameters alone; other tensors are w's. The run's optimizer takes its steps, without `local.keep`
and `local.tail_average`, on the local objective, weight decay included.
The global model is FedAvg's bit for bit, whatever the other settings.

Deviations: the authors' code scores the mixed logits, with its w_k. A client here deploys one
network, the mixture of weights, under "outputs", too; so "outputs" is not the default. The other
model gives its logits in evaluation mode. alpha of a client is `alpha` in the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.api.method import Round, ServerState
from raysim.api.rules import Batch, Companion, Outputs, Pass, Rules, Trained, Upload, View
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import (
    Groups,
    Tensors,
    add_scaled,
    inner_products,
    only,
    parameter_names,
)

Mixture = Literal["weights", "outputs", "models"]
NAME, ALPHA, DUE = "apfl", "alpha", "due"
FIRST = "first_v"
"""Group of the first parameters, in the server's state."""


class Apfl(FedAvg):
    """FedAvg with a private model of each client, mixed with the global one.

    Helps where clients gain to different degrees from others: alpha is the share of the private
    model that a client deploys, and `adaptive` learns it. Costs a gradient more a step, one more
    still with `adaptive` under "outputs" and "models"; a model more in memory, and a model and a
    number kept by each client that ever took part. Bytes are FedAvg's.
    """

    alpha: float = Field(default=0.5, ge=0, le=1, description="share of the client's own model")
    mixture: Mixture = Field(
        default="weights", description="mixed in training: weights, outputs, or models at its end"
    )
    adaptive: bool = Field(default=False, description="whether clients learn their alpha")
    decay: float = Field(
        default=0.02, ge=0, description="weight decay of alpha, if adaptive; 0 is the paper's"
    )
    # gradients that are not clipped: v takes a separate step
    needs_local: ClassVar[Mapping[str, object]] = {"clip_norm": None}

    def init(self, network: nn.Module) -> ServerState:
        """Keep the first parameters; all clients' private models start there."""
        model = super().init(network).groups["model"]
        return ServerState({"model": model, FIRST: only(model, parameter_names(network))})

    def client_init(self, state: ServerState) -> Groups:
        """Start a client's own model at the first parameters, and its alpha at `alpha`."""
        return {"v": state.groups[FIRST], ALPHA: {ALPHA: torch.tensor(self.alpha)}}

    def rules(self) -> Rules:
        """Return the rules of local training: FedAvg's, which also train v."""
        gradient = partial(
            _gradient, mixture=self.mixture, adaptive=self.adaptive, decay=self.decay
        )
        finish = partial(_finish, mixes=self.mixture == "models")
        return Rules(companions=(Companion(NAME, _start, gradient, _beginning),), finish=finish)

    def deployment(self, now: Round, state: ServerState) -> Pass:
        """Deploy the mixture of the client's own model and the global one."""
        start = partial(_deployed, mixes=self.mixture != "models")
        return Pass(now.cohort, self.broadcast(state), Rules(start=start))

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass] | None:
        """Deploy the mixture of the client's own model and w_k, both as it has trained them."""
        return self.trained_alone(now, state, _deploy)


def _mixed(alpha: Tensor, v: Tensors, w: Tensors) -> dict[str, Tensor]:
    return {name: alpha * personal + (1 - alpha) * w[name] for name, personal in v.items()}


def _start(view: View) -> Tensors:
    return view.state["v"]


def _beginning(view: View) -> Tensors:
    """Return alpha, and whether it is due to be adapted in the next step."""
    alpha = view.state[ALPHA][ALPHA]
    return {ALPHA: alpha, DUE: torch.ones_like(alpha)}


def _gradient(
    view: View,
    v: Tensors,
    batch: Batch,
    state: Tensors,
    lr: float | Tensor,
    *,
    mixture: Mixture,
    adaptive: bool,
    decay: float,
) -> tuple[Tensors, Tensors]:
    alpha, due = state[ALPHA], state[DUE]
    w = {name: view.params[name].detach() for name in v}
    slope, u = _gradients(view, batch, (v, w, alpha), mixture, adaptive)
    if adaptive:
        along = inner_products(add_scaled(v, w, -1), u).sum().to(alpha.dtype)
        adapted = (alpha - lr * (along + decay * alpha)).clamp(0, 1)
        alpha = torch.where(due > 0, adapted, alpha)
    return slope, {ALPHA: alpha, DUE: due if mixture == "models" else torch.zeros_like(due)}


def _gradients(
    view: View,
    batch: Batch,
    mixed: tuple[Tensors, Tensors, Tensor],
    mixture: Mixture,
    adaptive: bool,
) -> tuple[Tensors, Tensors]:
    """Return the gradient of v's step, and u if alpha is adapted.

    Args:
        view: The client's view.
        batch: The samples.
        mixed: v, w_k and alpha.
        mixture: What is mixed.
        adaptive: Whether u is needed.
    """
    v, w, alpha = mixed

    def of(tensors: Tensors, other: Tensors, share: Tensor) -> Tensors:
        """Return the gradient at tensors, alone or of their share of the mixed logits."""
        there = {**view.params, **tensors}
        if mixture == "models":
            return view.gradient(there, batch)
        beside = view.at({**view.params, **other}, batch.x).logits

        def mix(outputs: Outputs) -> Outputs:
            return outputs._replace(logits=share * outputs.logits + (1 - share) * beside)

        return view.gradient(there, batch, change_outputs=mix)

    if mixture == "weights":
        u = view.gradient({**view.params, **_mixed(alpha, v, w)}, batch)
        return {name: alpha * gradient for name, gradient in u.items()}, u
    slope = of(v, w, alpha)
    return slope, _mixed(alpha, slope, of(w, v, 1 - alpha)) if adaptive else {}


def _finish(view: View, trained: Trained, *, mixes: bool) -> Upload:
    v, alpha = trained.companions[NAME], trained.states[NAME][ALPHA]
    kept = _mixed(alpha, v, view.params) if mixes else v
    return Upload(
        sums={"model": view.params},
        state={"v": kept, ALPHA: {ALPHA: alpha}},
        metrics={"alpha": float(alpha)},
    )


def _deploy(view: View, trained: Trained) -> Upload:
    v, alpha = trained.companions[NAME], trained.states[NAME][ALPHA]
    return Upload(sums={"model": {**view.params, **_mixed(alpha, v, view.params)}})


def _deployed(broadcast: Groups, state: Groups, personal: Groups, *, mixes: bool) -> Tensors:
    model, v = broadcast["model"], state["v"]
    return {**model, **(_mixed(state[ALPHA][ALPHA], v, model) if mixes else v)}
