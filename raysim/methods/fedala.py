"""FedALA: each client starts from a mixture of its own last model and the global one, by element.

Source: Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning",
AAAI 2023, algorithm 1; the authors' code, github.com/TsingZ0/FedALA.

    pass 1, the cohort, on a share s of its own samples, a contiguous part of them at random,
    batch by batch in their order:
        theta <- old + (w - old) * W           the last p tensors; below them theta is w
        W <- W - eta_w * g(theta) * (w - old), within [0, 1]
    pass 2:  w_k from theta, as in FedAvg; old <- the last p tensors of w_k
    server:  w <- sum_k p_k w_k                p_k as in FedAvg
    deploy:  theta after pass 1 from the newest w, before any training

W, of the shape of the p tensors, is 1 at first. A client repeats the epochs of its first pass 1
until the losses of the last batches of `window` epochs deviate by less than `threshold`, after
window + 1 epochs at the least; later ones take one epoch. While its old p tensors equal w's, as in
round 1, nothing is learned: theta is w, W stays, and the first pass is still to come. The
code looks at the sum of the first tensor's differences, and keeps the whole old model if it is 0. A
smaller last batch takes part in pass 1, as in the code, whatever `local.drop_last` is; in pass 2
the code leaves it out, and takes the samples in one order.

As in the authors' code p counts parameter tensors, 2 for a linear layer, and p=0 is all of them;
the paper counts layers. Until a client has taken part, old is the network as it was built, so a
client that never did deploys the model that it would start from. Even where W = 1, theta is
old + (w - old), which is not w to the last bit.

Deviations: gradients are taken in evaluation mode, of the local objective, weight decay included;
buffers are w's, in the code a client's own; at least one sample is used; `max_epochs` ends a first
pass that does not settle, which is without end in the code. A stack trains pass 2 at once, and pass
1 client by client. The virtual clock counts pass 1 as in the first round, for all rounds: nothing
is learned there, so it takes no time of computing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import nn

from raysim.api.method import Passes, Round, ServerState
from raysim.api.rules import Batch, Pass, Rules, Trained, Upload, View, nothing_received
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import Groups, Tensors, add_scaled, nbytes, parameter_names

OLD, WEIGHTS, USES, START = "old", "weights", "uses", "start"


class FedAla(FedAvg):
    """FedAvg in which clients learn, for each element, how much of the global model to take over.

    Helps where clients differ in their last layers. Costs a gradient of the last p tensors over a
    share of a client's samples each round, more in its first; and twice these tensors, kept by each
    client that ever took part. Bytes are FedAvg's.
    """

    real: ClassVar[bool] = True

    eta: float = Field(default=1.0, gt=0, description="learning rate of the weights W")
    share: float = Field(default=0.8, gt=0, le=1, description="s, of a client's samples, for W")
    p: int = Field(default=2, ge=0, description="last parameter tensors that W mixes; 0 for all")
    threshold: float = Field(
        default=0.1, ge=0, description="deviation of losses at which the first W has settled"
    )
    window: int = Field(default=10, ge=1, description="epochs over which losses must have settled")
    max_epochs: int = Field(default=100, ge=1, description="most epochs of a client's first W")

    def init(self, network: nn.Module) -> ServerState:
        """Keep the first values of the last p tensors, the old ones of clients at first."""
        model, trained = super().init(network).groups["model"], parameter_names(network)
        names = [name for name in model if name in trained][-self.p :]
        return ServerState({"model": model, OLD: {name: model[name] for name in names}})

    def client_init(self, state: ServerState) -> Groups:
        """Start a client's W at 1, and its old tensors at their first values."""
        old = state.groups[OLD]
        ones = {name: torch.ones_like(tensor) for name, tensor in old.items()}
        return {OLD: old, WEIGHTS: ones, USES: {USES: torch.zeros((), dtype=torch.int64)}}

    def round_state_bytes(self, state: ServerState) -> int:
        """Return the most bytes that the second pass takes over from the first."""
        return nbytes(self.client_init(state))

    def round(self, now: Round, state: ServerState) -> Passes:
        """Have the cohort learn where to start, then train from there."""
        preparation, training = self.deployment_after(now, state)
        prepared = yield preparation
        reduced = yield replace(training, clients=prepared.clients)
        return self.server_update(now, state, reduced), {}

    def deployment(self, now: Round, state: ServerState) -> Pass:
        """Deploy the model that the client would start to train from."""
        return self._preparation(now, state, _deploy)

    def deployment_after(self, now: Round, state: ServerState) -> tuple[Pass, Pass]:
        """Deploy the model that the client has trained from there: the round's two passes."""
        rules = Rules(start=_start, finish=_finish)
        training = replace(self.training_pass(now, state), rules=rules, bytes_down=nothing_received)
        return self._preparation(now, state, _prepare), training

    def _preparation(self, now: Round, state: ServerState, finish: Any) -> Pass:
        """Return the pass that learns W; `finish` keeps W for the second pass."""
        settings = self.model_dump(exclude={"p"})
        return Pass(
            now.cohort,
            self.broadcast(state),
            Rules(finish=partial(finish, **settings)),
            trainable=frozenset(state.groups[OLD]),
        )


def _prepare(view: View, trained: Trained, **settings: Any) -> Upload:
    start, weights, uses = _learned(view, trained, **settings)
    return Upload(round_state={START: start, "new_weights": weights, "new_uses": uses})


def _deploy(view: View, trained: Trained, **settings: Any) -> Upload:
    start, *_ = _learned(view, trained, **settings)
    return Upload(sums={"model": {**view.start, **start}})


def _learned(
    view: View,
    trained: Trained,
    *,
    eta: float,
    share: float,
    threshold: float,
    window: int,
    max_epochs: int,
) -> tuple[Tensors, Tensors, Tensors]:
    """Return the last p tensors to start from, W, and how often W was learned."""
    old, weights, uses = view.state[OLD], view.state[WEIGHTS], view.state[USES][USES]
    moves = add_scaled({name: view.start[name] for name in old}, old, -1)
    theta = _mixture(old, moves, weights)
    if not any(bool(move.any()) for move in moves.values()):
        return theta, weights, {USES: uses}
    losses: list[float] = []
    part = _part(trained.samples, share, view.generator("samples"))
    first = not uses
    for _ in range(max_epochs if first else 1):
        for batch in _in_order(part, trained):
            before = theta
            gradient = view.gradient({**view.start, **theta}, batch)
            weights = {
                name: (weight - eta * (gradient[name] * moves[name])).clamp(0, 1)
                for name, weight in weights.items()
            }
            theta = _mixture(old, moves, weights)
        if first:
            losses.append(float(batch.loss(view.at({**view.start, **before}, batch.x).logits)))
        if len(losses) > window and np.std(losses[-window:]) < threshold:
            break
    return theta, weights, {USES: uses + 1}


def _mixture(old: Tensors, moves: Tensors, weights: Tensors) -> Tensors:
    return {name: tensor + moves[name] * weights[name] for name, tensor in old.items()}


def _part(samples: Batch, share: float, draws: torch.Generator) -> Batch:
    """Return a contiguous part of samples at a random place."""
    count = max(int(share * len(samples.y)), 1)
    last = len(samples.y) - count
    first = int(torch.randint(0, last + 1, (), generator=draws, device=draws.device))
    rows = slice(first, first + count)
    return samples._replace(x=samples.x[rows], y=samples.y[rows])


def _in_order(samples: Batch, trained: Trained) -> Iterator[Batch]:
    """Yield batches of samples in their order, the last one too if it is smaller."""
    count, size = len(samples.y), trained.batching.size
    size = count if size == "full" else size
    for first in range(0, count, size):
        rows = slice(first, first + size)
        yield samples._replace(x=samples.x[rows], y=samples.y[rows])


def _start(broadcast: Groups, state: Groups, personal: Groups) -> Tensors:
    """Start from the learned theta; the server, on its own root samples, from the model."""
    return {**broadcast["model"], **state.get(START, {})}


def _finish(view: View, trained: Trained) -> Upload:
    kept = {
        OLD: {name: view.params[name] for name in view.state[OLD]},
        WEIGHTS: view.state["new_weights"],
        USES: view.state["new_uses"],
    }
    return Upload(sums={"model": view.params}, state=kept)
