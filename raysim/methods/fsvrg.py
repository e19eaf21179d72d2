"""FSVRG: federated stochastic variance-reduced gradient.

Source: Konecny, McMahan, Ramage and Richtarik, "Federated Optimization: Distributed Machine
Learning for On-Device Intelligence", arXiv:1610.02527, 2016; a baseline of Uddin et al., "Mutual
Information Driven Federated Learning", IEEE TPDS 2021.

    pass 1, all K clients:  full <- sum_k n_k/n * (gradient of client k's whole loss at w)
    pass 2, the cohort:     w_k <- w_k - eta_k * (g_b(w_k) - g_b(w) + full)
    server:                 w <- sum_k p_k w_k                       p_k as in FedAvg

    step="scaled":    eta_k = h * lr_decay^round / (local steps of client k)
    step="constant":  eta_k = the learning rate of the round

lr x steps is the length of the path over which g_b(w_k) - g_b(w) must stay right. With "scaled",
the source's h/n_k, it does not grow with the epochs or shrinking batches. local.lr is then not
used; its floor local.lr_min and local.momentum are refused. MIFL's table prints "constant". The
full gradient is taken in evaluation mode, on data as stored, at `local.temperature` and with the
weight decay. g_b(w_k) and g_b(w) are gradients of the same batch with the same dropout masks. Pass
1 weighs by examples whatever `weighting` says. Deviations: the scalings S_k and A of the source,
made for sparse features, are left out; the cohort need not be all clients, though MIFL's comparison
runs it with fraction=1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import truediv
from typing import ClassVar, Literal

from pydantic import Field

from raysim.api.method import Passes, Round, ServerState
from raysim.api.rules import Batch, Pass, Rules, Trained, Transform, Upload, View
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import Tensors, add_scaled, add_scaled_, nbytes


class Fsvrg(FedAvg):
    """FedAvg with every step's gradient corrected towards the gradient over all clients.

    Helps where clients differ and the model is small or convex. Costs a full gradient of every
    client each round and twice FedAvg's gradients a step; two more sets of parameters in memory,
    and the activations of a client's whole data at once. Every client, sampled or not, receives
    the model and sends a gradient; the cohort receives the full gradient besides.
    """

    needs_sample_losses: ClassVar[bool] = True

    step: Literal["scaled", "constant"] = Field(
        default="scaled", description="learning rate: h over a client's local steps, or local.lr"
    )
    h: float = Field(default=0.6, gt=0, description="learning rate x local steps, if scaled")

    @property
    def needs_local(self) -> Mapping[str, object]:
        """SGD on whole gradients; with scaled steps no momentum, and no schedule but lr_decay."""
        always = {"optimizer": "sgd", "clip_norm": None}
        plain = {"momentum": 0.0, "lr_min": 0.0, "schedule": "constant", "warmup_rounds": 0}
        return {**always, **plain} if self.step == "scaled" else always

    def rules(self) -> Rules:
        """Return the rules of the second pass: SGD along the corrected gradient."""
        return Rules(transforms=(Transform("fsvrg", _correct),))

    def round(self, now: Round, state: ServerState) -> Passes:
        """Gather the full gradient from all clients, then train the cohort along it."""
        model = state.groups["model"]
        if self.step == "scaled" and now.number == 0:
            now.note('method.step="scaled": local.lr is not used')
        gathered = yield Pass(
            now.everyone,
            {"model": model},
            Rules(finish=_send_gradient),
            weighting="examples",
        )
        full = gathered.means["gradient"]
        received = nbytes({"full": full})  # the cohort has the model since the first pass
        h = self.h * now.lr / now.lr_at(0)
        reduced = yield Pass(
            now.cohort,
            {"model": model, "full": full},
            self.rules(),
            now.epochs,
            now.lr if self.step == "constant" else partial(truediv, h),
            bytes_down=lambda client: received,
        )
        return self.server_update(now, state, reduced), {}


def _send_gradient(view: View, trained: Trained) -> Upload:
    return Upload(sums={"gradient": view.gradient(view.start, trained.data)})


def _correct(
    view: View, gradients: Tensors, batch: Batch, state: Tensors
) -> tuple[Tensors, Tensors]:
    corrected = add_scaled(gradients, view.gradient(view.start, batch), -1)
    return add_scaled_(corrected, view.broadcast["full"]), state
