"""Per-FedAvg: a global model that one gradient step turns into a good model for each client.

Source: Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach", NeurIPS 2020, algorithm 1; "HF" and "FO" in
section 5.

    step:    u = g(w_k - alpha * g(w_k; D); D')
             w_k <- w_k - eta * (u - alpha * H(w_k; D'') u)
    deploy:  w - alpha * g(w; all own training samples)

    hessian="none":     H u is left out (FO)
    hessian="finite":   H u = (g(w_k + delta * u; D'') - g(w_k - delta * u; D'')) / (2 * delta) (HF)
    hessian="exact":    H u by differentiating <g, u>

g and H are gradient and Hessian of the local objective, weight decay and penalties included; eta,
the paper's beta, is `local.lr`. D, D' and D'' are drawn without replacement: the samples of a batch
are dealt out in turn, to two parts with "none", else to three. So B is the size of two or three of
the paper's batches. If all samples of a client fit into one batch, its parts are therefore the same
in every step, where the paper draws new ones. A part of a small batch repeats its first samples
until it has two, because BatchNorm needs two. The parts share the step's random draws (dropout).
The mean of the clients is weighted as FedAvg's; the paper's is uniform. With alpha=0, "none" takes
the gradient of D' alone.

No code of the authors was found. Discrepancies: the code of pFedMe's authors adapts by two steps on
test batches, PFLlib by one training batch, and trains each client twice a round; here a client
adapts as the paper's objective says, f(w - alpha * g(w)), on all of its training samples, in
evaluation mode. `train_loss` is the loss at w_k on the whole batch, before any step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field

from raysim.api.method import Round, ServerState
from raysim.api.rules import Batch, Pass, Rules, Trained, Transform, Upload, View
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import Tensors, add_scaled

Hessian = Literal["none", "finite", "exact"]


class PerFedAvg(FedAvg):
    """FedAvg of the loss that clients have after one gradient step on their own data.

    Helps where each client, a new one too, can afford a step on its own data before it uses the
    model. Costs two gradients more a step, on half of the batch each; with "finite" four, with
    "exact" two and the derivative of a third, on thirds. Bytes are FedAvg's, and clients keep
    nothing. Deploying takes the activations of a client's whole data at once.
    """

    alpha: float = Field(default=0.01, ge=0, description="learning rate of the client's own step")
    hessian: Hessian = Field(
        default="none", description="Hessian term: left out (FO), by differences (HF), or exact"
    )
    delta: float = Field(default=0.001, gt=0, description="length of the differences, if finite")
    # gradients that are not clipped: several make up a step
    needs_local: ClassVar[Mapping[str, object]] = {"clip_norm": None}

    def rules(self) -> Rules:
        """Return the rules of local training: SGD along the gradient after a step."""
        update = partial(_meta_gradient, alpha=self.alpha, hessian=self.hessian, delta=self.delta)
        return Rules(transforms=(Transform("per_fedavg", update, replaces=True),))

    def deployment(self, now: Round, state: ServerState) -> Pass:
        """Deploy the global model after one step on the client's whole training data."""
        rules = Rules(finish=partial(_adapt, alpha=self.alpha))
        return Pass(now.cohort, self.broadcast(state), rules)

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass] | None:
        """Deploy w_k after one step on the client's whole training data."""
        return self.trained_alone(now, state, partial(_adapt, alpha=self.alpha))


def _meta_gradient(
    view: View,
    gradients: Tensors,
    batch: Batch,
    state: Tensors,
    *,
    alpha: float,
    hessian: Hessian,
    delta: float,
) -> tuple[Tensors, Tensors]:
    def moved(direction: Tensors, scale: float) -> Tensors:
        here = {name: view.params[name].detach() for name in gradients}
        return {**view.params, **add_scaled(here, direction, scale)}

    inner, outer, *curved = _dealt(batch, 2 if hessian == "none" else 3)
    step = view.gradient(moved(view.gradient(view.params, inner), -alpha), outer)
    if not curved:
        return step, state
    if hessian == "exact":
        product = view.gradient(view.params, *curved, along=step)
        return add_scaled(step, product, -alpha), state
    ahead = view.gradient(moved(step, delta), *curved)
    difference = add_scaled(ahead, view.gradient(moved(step, -delta), *curved), -1)
    return add_scaled(step, difference, -alpha / (2 * delta)), state


def _dealt(batch: Batch, parts: int) -> list[Batch]:
    """Deal out a batch's samples in turn, from its first ones again where a part lacks two."""
    rows = len(batch.y)
    if batch.weights is None:
        dealt: list[slice | list[int]] = [
            slice(part, None, parts)
            if part + parts < rows
            else [part % rows, (part + parts) % rows]
            for part in range(parts)
        ]
        return [batch._replace(x=batch.x[part_rows], y=batch.y[part_rows]) for part_rows in dealt]
    size = batch.size().long().clamp(min=1)  # of a stack: known to tensors alone
    turns = torch.arange(max(-(-rows // parts), 2), device=batch.y.device)
    batches = []
    for part in range(parts):
        places = part + parts * turns
        weights = ((places < size) | (turns < 2)).to(batch.weights.dtype)
        places = places % size
        batches.append(batch._replace(x=batch.x[places], y=batch.y[places], weights=weights))
    return batches


def _adapt(view: View, trained: Trained, *, alpha: float) -> Upload:
    gradient = view.gradient(view.params, trained.data)
    params = {name: view.params[name].detach() for name in gradient}
    return Upload(sums={"model": {**view.params, **add_scaled(params, gradient, -alpha)}})
