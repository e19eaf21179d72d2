"""PowerSGD: changes of a low rank, by two linear passes and error feedback.

Source: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", NeurIPS 2019, algorithms 1 and 2, with a client's whole change of a round
in place of a gradient.

    client:  M_k = (w_k - w) + e_k        sends P_k = M_k Q
    server:  P = orth(sum_k p_k P_k)
    client:  sends Q_k = M_k' P           e_k <- M_k - P Q_k'
    server:  Q <- sum_k p_k Q_k           w <- w + P Q'

M_k [n, m] is the change of a tensor, its first dimension against all others, and r the rank. Both
passes are sums, so P Q' is the mean change as seen in the r directions P. Q continues from round to
round (warm start); the first Q is drawn. FedAvg averages buffers, parameters of one dimension, and
parameters for which P and Q would hold no fewer values. e_k starts at zero, is kept by each client
between its participations, and is added as it is, however many rounds have passed. If a client is
lost in the second pass, or the round is lost, e_k stays as it was.

Deviations and choices:

- residual="own" is algorithm 2: a client keeps the difference of its change and its own P Q_k'. The
  authors' code subtracts the mean P Q'; with residual="mean" the server sends that in a third trip.
  Both have the same mean over a full cohort.
- Their later code multiplies from one side a step, in turn, and sends plain gradients for 100
  steps; here each round has both products, from the first one on. It skips tensors that a step
  shrinks by less than 2: their P and Q together hold no fewer values.
- Momentum is `local.momentum`, or a server's: the paper's follows the mean.
- The passes' groups are encoded already: stages of the channel pass by, and an aggregation other
  than the mean is refused.

Legend: r rank, n rows and m columns of a tensor.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.api.method import Passes, Round, ServerState
from raysim.api.rules import (
    Bases,
    Finish,
    Pass,
    Reduced,
    Rules,
    Trained,
    Upload,
    View,
    load_nothing,
)
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import Groups, Tensors, nbytes, parameter_names, zeros_like

MODEL, LEFT, RIGHT, ERROR, WHOLE = "model", "p", "q", "error", "whole"
"""Groups: the model, P and Q, a client's error, and M_k between the passes."""


class PowerSgd(FedAvg):
    """FedAvg of changes of a low rank, which all clients see in the same directions.

    Helps where communication is expensive and layers are wide: r(n + m) values in place of n m.
    Costs a second trip a round, products with each matrix, and an upload of state for each client
    that ever took part. Against `channel.low_rank`, the mean is of the rank that is sent.
    """

    needs_mean: ClassVar[str] = "products of their changes with P and Q"
    real: ClassVar[bool] = True
    bases: ClassVar[Bases | None] = {}

    rank: int = Field(default=4, ge=1, description="columns of P and Q")
    residual: Literal["own", "mean"] = Field(
        default="own",
        description="part that a client subtracts to keep the rest: its own, or the mean's",
    )

    def init(self, network: nn.Module) -> ServerState:
        """Start with Q to be drawn in the first round."""
        state = super().init(network)
        right = {
            name: tensor.new_zeros(tensor.numel() // len(tensor), self._rank(tensor))
            for name, tensor in state.groups[MODEL].items()
            if name in parameter_names(network) and self._is_compressed(tensor)
        }
        return state.replace(**{RIGHT: right})

    def client_init(self, state: ServerState) -> Groups:
        """Start with a client's error at zero."""
        model = state.groups[MODEL]
        return {ERROR: zeros_like({name: model[name] for name in state.groups.get(RIGHT, {})})}

    def round_state_bytes(self, state: ServerState) -> int:
        """Return the bytes of the change that a client holds between the passes."""
        return nbytes(self.client_init(state))

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass] | None:
        """Return the training pass: clients deploy their trained models."""
        return [self.training_pass(now, state)]

    def round(self, now: Round, state: ServerState) -> Passes:
        """Train the cohort; sum P, then Q, and move the model by their product."""
        right = state.groups.get(RIGHT, {})
        if not now.number:
            right = _drawn(right, now)
        pass_ = self.training_pass(now, state)
        finish = partial(_send_left, pass_.rules.finish)
        sent = {**pass_.broadcast, RIGHT: right}
        first = yield replace(pass_, broadcast=sent, rules=replace(pass_.rules, finish=finish))
        left = {name: _orthonormal(p) for name, p in first.means.get(LEFT, {}).items()}
        model = {**state.groups[MODEL], **first.means.get(MODEL, {})}
        if left:
            right = yield from self._right(first.clients, left)
            model |= {name: model[name] + _product(left, right, name, model) for name in left}
        reduced = replace(first, means={**first.means, MODEL: model, RIGHT: right})
        after = self.server_update(now, state, reduced)
        return after, self.metrics(after)

    def _right(self, clients: Sequence[int], left: Tensors) -> Generator[Pass, Reduced, Tensors]:
        """Return the mean Q of clients that have trained; each keeps its residual."""
        finish = partial(_send_right, self.residual == "own")
        pass_ = Pass(clients, {LEFT: left}, Rules(load_nothing, finish=finish), bases={})
        pass_ = replace(pass_, weighting=self.weighting)
        reduced = yield pass_
        right = reduced.means[RIGHT]
        if self.residual == "mean":  # clients have P
            rest = replace(pass_, clients=reduced.clients, broadcast={LEFT: left, RIGHT: right})
            trip = nbytes({RIGHT: right})
            yield replace(
                rest, rules=Rules(load_nothing, finish=_keep_rest), bytes_down=lambda client: trip
            )
        return right

    def _rank(self, tensor: Tensor) -> int:
        return min(self.rank, len(tensor), tensor.numel() // len(tensor))

    def _is_compressed(self, tensor: Tensor) -> bool:
        """Return whether P and Q hold fewer values than a tensor."""
        if tensor.dim() < 2 or not tensor.numel():
            return False
        rows, columns = len(tensor), tensor.numel() // len(tensor)
        return self._rank(tensor) * (rows + columns) < rows * columns


def _drawn(right: Tensors, now: Round) -> dict[str, Tensor]:
    """Return the first Q, by normal draws."""
    draws = now.generator(RIGHT)
    return {n: torch.randn(q.shape, generator=draws).to(q.dtype) for n, q in sorted(right.items())}


def _orthonormal(left: Tensor) -> Tensor:
    """Return orthonormal columns [n, r] with the span of given ones."""
    columns: Tensor = torch.linalg.qr(left.double()).Q
    return columns.to(left.dtype)


def _product(left: Tensors, right: Tensors, name: str, model: Tensors) -> Tensor:
    """Return P Q' of a tensor, in its shape."""
    product: Tensor = left[name] @ right[name].T
    return product.view(model[name].shape)


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), -1)


def _send_left(finish: Finish, view: View, trained: Trained) -> Upload:
    """Send P_k and the tensors that are not compressed; hold M_k for the second pass."""
    upload, start = finish(view, trained), view.broadcast[MODEL]
    right = view.broadcast.get(RIGHT, {})
    model = upload.sums[MODEL]
    whole = {n: model[n].detach() - start[n] + view.state[ERROR][n] for n in right}
    left = {n: _matrix(whole[n]) @ q for n, q in right.items()}
    others = {n: tensor for n, tensor in model.items() if n not in right}
    sums = {**{g: sent for g, sent in upload.sums.items() if g != MODEL}, MODEL: others, LEFT: left}
    sums = {group: tensors for group, tensors in sums.items() if tensors}
    return replace(upload, sums=sums, round_state={**upload.round_state, WHOLE: whole})


def _send_right(sends: bool, view: View, trained: Trained) -> Upload:
    """Send Q_k; keep the residual of P Q_k' if `residual` is "own"."""
    left, whole = view.broadcast[LEFT], view.state[WHOLE]
    right = {name: _matrix(whole[name]).T @ p for name, p in left.items()}
    if not sends:
        return Upload(sums={RIGHT: right}, round_state={WHOLE: whole})
    return Upload(sums={RIGHT: right}, state={ERROR: _rest(whole, left, right)})


def _keep_rest(view: View, trained: Trained) -> Upload:
    """Keep the part that the mean P Q' leaves out."""
    left, right = view.broadcast[LEFT], view.broadcast[RIGHT]
    return Upload(state={ERROR: _rest(view.state[WHOLE], left, right)})


def _rest(whole: Tensors, left: Tensors, right: Tensors) -> dict[str, Tensor]:
    return {name: whole[name] - _product(left, right, name, whole) for name in left}
