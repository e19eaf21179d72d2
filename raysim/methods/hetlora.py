"""HetLoRA: clients of unequal ranks truncate one global adapter, and the server pads their own.

Source: Cho, Liu, Xu, Fahrezi and Joshi, "Heterogeneous LoRA for Federated Fine-tuning of On-Device
Foundation Models", EMNLP 2024, arXiv:2401.06432, section 3; its authors published no code.

    down:    client k of rank r takes the first r rows of A and columns of B
    client:  loss + lam * sum over layers of |B_tail| |A_tail|      the rows from gamma r to r
             then r <- gamma r, if the sum of |B_tail| |A_tail| fell in its training
    server:  A <- sum_k p_k A_k        B <- sum_k p_k B_k           padded with zeros, which count,
             up to the largest rank of the round; rows and columns above it stay as they were

    weights="norm":      p_k ~ |B_k A_k|, the root of the sum of the squares of all layers
    weights="examples":  p_k as in FedAvg

|.| is Frobenius's norm. With equal ranks, gamma=1 and weights="examples" it is FedIT, which is
FedAvg, bit for bit. p_k weighs a head, too. gamma r is rounded down, and is 1 at least; with
gamma=1 there is no tail, no penalty and no pruning. Clients send their new rank, in four bytes, and
the server keeps it. gamma=0.99 and lam=0.01 are those of a public fork of FederatedScope. A round
in which all norms are 0 leaves the model as it is.

Choices: rows that no client of a round has stay, as a tensor that nobody sends; with 0 in A and in
B they would have no gradient ever after. So rows that all clients have pruned stay in the global
adapter. All clients have its scale s, as they hold a part of it. The paper does not say whether
norms are of a layer or of all; here they are of all, so that a client has one weight. A client that
prunes sends its tail, and counts it, in this round for the last time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.api.method import Round, ServerState
from raysim.api.rules import (
    Bases,
    Batch,
    Outputs,
    Pass,
    Reduced,
    Trained,
    Upload,
    View,
    Weighting,
)
from raysim.methods import partly_shared
from raysim.methods.adapted import (
    RANK,
    Ranked,
    below_rank,
    bytes_at,
    with_ranks,
)
from raysim.numbers.adapters import Adapter, adapters_of
from raysim.numbers.tensors import Tensors

SCALED, WEIGHT = "scaled", "weight"
"""Groups that clients send: tensors times their weight, and the weight."""
Pairs = tuple[tuple[str, str], ...]
"""Names of A and of B of each layer."""
SLACK = 1e-6
"""A product of gamma and a rank that is whole may lie this far below it."""


class HetLora(Ranked):
    """FedAvg of adapters of unequal ranks: truncated on the way down, padded on the way up.

    Helps where clients' devices differ: a weak one trains and sends a few rows and columns of the
    same adapter. Costs a norm of the tail a step, and on the server a rank of each client that has
    pruned. Against FedAvg clients of a low rank save bytes. Their zeros pull the last rows and
    columns to 0 where a client of the round has these; the weights by norm act against that.
    """

    without_ranks: ClassVar[str] = "leave out method.ranks and set method.gamma=1"

    gamma: float = Field(default=0.99, gt=0, le=1, description="part of a rank that pruning leaves")
    lam: float = Field(default=0.01, ge=0, description="strength of the penalty on the tail")
    weights: Literal["norm", "examples"] = Field(
        default="norm", description="weights of the mean: the norm of B A, or the run's weighting"
    )

    @property
    def has_ranks(self) -> bool:
        """True if clients may have, or come to have, other ranks than the network."""
        return self.ranks is not None or self.gamma < 1

    @property
    def weighting(self) -> Weighting | None:  # type: ignore[override]  # a constant of others
        """Uniform where clients scale their uploads by their weights; None takes the run's."""
        return "uniform" if self.weights == "norm" else None

    @property
    def bases(self) -> Bases | None:  # type: ignore[override]  # a constant of other methods
        """None of an upload that is scaled, or padded with zeros, which are no changes."""
        return {} if self.weights == "norm" or self.has_ranks else None

    @property
    def needs_mean(self) -> str:  # type: ignore[override]  # a constant of other methods
        """The uploads, if they are scaled."""
        return "tensors times their weights" if self.weights == "norm" else ""

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return FedAvg's pass at the clients' ranks, with the penalty and the pruning."""
        pass_ = super().training_pass(now, state)
        adapters, rules = adapters_of(now.network), pass_.rules
        if self.gamma < 1 and self.lam:
            rules = replace(rules, penalties=(partial(self._penalty, _pairs(adapters)),))
        return replace(pass_, rules=replace(rules, finish=partial(self._finish, adapters)))

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Return the state with the weighted mean of the padded tensors, and the new ranks."""
        means = dict(reduced.means)
        total = means.pop(WEIGHT, {}).get(WEIGHT)
        if total is not None and total > 0:
            scaled = {name: mean / total for name, mean in means[SCALED].items()}
            means["model"] = {**means.get("model", {}), **scaled}
        after = super().server_update(now, state, replace(reduced, means=means))
        if not self.has_ranks:
            return after
        ranks = self.ranks_of(now, state, reduced.clients)
        model, most = dict(after.groups["model"]), max(ranks.values(), default=0)
        for adapter in adapters_of(now.network):
            model |= below_rank(adapter, model, most, state.groups["model"])
        told = zip(reduced.clients, map(int, reduced.scalars.get(RANK, ())), strict=self.gamma < 1)
        pruned = {client: rank for client, rank in told if rank < ranks[client]}
        return with_ranks(after.replace(model=model), pruned)

    def _penalty(self, pairs: Pairs, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        return self.lam * self._tail(pairs, view.params, view.personal[RANK][RANK])

    def _tail(self, pairs: Pairs, tensors: Tensors, rank: Tensor) -> Tensor:
        """Return the sum over layers of |B_tail| |A_tail|."""
        pruned, norms = self._pruned(rank), []
        for a, b in ((tensors[a].flatten(1), tensors[b].flatten(1)) for a, b in pairs):
            places = torch.arange(len(a), device=rank.device)
            in_tail = (pruned <= places).logical_and(places < rank)
            of_a, of_b = torch.where(in_tail[:, None], a, 0), torch.where(in_tail, b, 0)
            norms.append(torch.linalg.vector_norm(of_b) * torch.linalg.vector_norm(of_a))
        return torch.stack(norms).sum()

    def _pruned(self, rank: Tensor) -> Tensor:
        """Return the rank that pruning leaves of a rank []."""
        return (self.gamma * rank.double() + SLACK).floor().clamp(min=1)

    def _finish(self, adapters: Sequence[Adapter], view: View, trained: Trained) -> Upload:
        upload = partly_shared.finish(view, trained)
        if not self.has_ranks:
            return self._scaled(adapters, view, upload)
        rank = view.personal[RANK][RANK]
        sent = bytes_at(adapters, upload.sums["model"], int(rank))
        scalars: dict[str, float] = {}
        if self.gamma < 1:
            tails = (self._tail(_pairs(adapters), t, rank) for t in (view.start, view.params))
            before, after = tails
            rank = self._pruned(rank) if after < before else rank
            scalars, sent = {RANK: float(rank)}, sent + 4
        metrics = {} if scalars else {RANK: float(rank)}
        upload = replace(upload, bytes_up=sent, scalars=scalars, metrics=metrics)
        return self._scaled(adapters, view, upload)

    def _scaled(self, adapters: Sequence[Adapter], view: View, upload: Upload) -> Upload:
        """Return the upload times the norm of B A, if that is its weight."""
        if self.weights == "examples":
            return upload
        norms = [torch.linalg.vector_norm(adapter.product(view.params)) for adapter in adapters]
        weight = torch.linalg.vector_norm(torch.stack(norms))
        model = upload.sums["model"]
        scaled = {n: weight * t for n, t in model.items() if t.is_floating_point()}
        whole = {n: t for n, t in model.items() if n not in scaled}
        sums = {**upload.sums, "model": whole, SCALED: scaled, WEIGHT: {WEIGHT: weight}}
        sums = {group: tensors for group, tensors in sums.items() if tensors}
        return replace(upload, sums=sums, bytes_up=upload.sent_bytes())


def _pairs(adapters: Sequence[Adapter]) -> Pairs:
    return tuple((adapter.a, adapter.b) for adapter in adapters)
