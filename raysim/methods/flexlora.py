"""FlexLoRA: the mean product of clients' adapters, cut to each rank by its singular values.

Source: Bai, Chen, Qian, Yao and Li, "Federated Fine-tuning of Large Language Models under
Heterogeneous Tasks and Client Resources", NeurIPS 2024, arXiv:2402.11505, section 3; its code in
github.com/alibaba/FederatedScope, branch FlexLoRA.

    client k:  trains A_k [r, in], B_k [out, r] at its rank r, with the scale s_k of that rank
    server:    M = sum_k p_k s_k B_k A_k = U S V'       A = V'        B = U S / s
    down:      the first r rows of A, and columns of B times s / s_k

p_k as in FedAvg, s = alpha / R (rsLoRA: alpha / sqrt R). Where R is the rank of M or more, the
server's product is the mean product, up to rounding. M may have fewer singular values than R, as
where the ranks of a round add up to less: further rows of A are free then. They stay as they were,
with 0 in B, so that a later client of a higher rank trains them. Other trained parts, such as a
head, are averaged.

    way="product":  M is summed up, and its singular values are taken
    way="qr":       [sqrt(p_k) s_k B_k] = Q_B R_B        [sqrt(p_k) A_k]' = Q_A R_A
                    and the singular values are those of R_B R_A'

"qr" is HLoRA's way (NVFlare's `medgemma` example), with no matrix [out, in]: for wide layers and
few clients. Its server sees the factors of single clients. Choices and discrepancies: HLoRA's code
puts U into B and S V' into A and leaves alpha / r out, which is right where all clients have one
alpha / r; FedLLM-Factory puts sqrt S on both sides. Where M is 0, A would be arbitrary: A and B
stay as they were.

Legend: R rank of the network's adapters, r rank of a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.api.method import Round, ServerState
from raysim.api.rules import Bases, Pass, Reduced, Trained, Upload, View, Weighting
from raysim.methods.adapted import PRODUCT, Ranked, rank_of, send_products, with_scales
from raysim.numbers.adapters import Adapter, adapters_of
from raysim.numbers.tensors import Tensors

FACTORS = "factors"
"""Group that clients send with `way="qr"`: A_k and s_k B_k."""


class FlexLora(Ranked):
    """FedAvg of the products of adapters, from which each client gets its rank.

    Helps where clients' ranks differ, and where means of A and of B lose too much: the mean of
    products is what FedAvg of full weights would give. Costs the server singular values of each
    adapted matrix a round; bytes are those of the clients' ranks.
    """

    own_server: ClassVar[str] = "factors the mean product anew"
    needs_mean: ClassVar[str] = "adapters, whose products are averaged"
    real: ClassVar[bool] = True
    bases: ClassVar[Bases | None] = {}

    way: Literal["product", "qr"] = Field(
        default="product", description="singular values of the mean product, or of its QR factors"
    )

    def network(self, model: nn.Module) -> nn.Module:
        """Return the model, with scales that differ by client where ranks do."""
        return with_scales(model) if self.has_ranks else model

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return FedAvg's pass at the clients' ranks, which send products or factors."""
        pass_ = super().training_pass(now, state)
        finish = partial(_send, adapters_of(now.network), self.way == "qr")
        # The server weighs factors by itself, and knows no weights but these.
        known: Weighting = "uniform" if now.weighting == "uniform" else "examples"
        return replace(
            pass_,
            rules=replace(pass_.rules, finish=finish),
            weighting=known if self.way == "qr" else pass_.weighting,
        )

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Return the state with A and B of the singular values."""
        model = {**state.groups["model"], **reduced.means.get("model", {})}
        for adapter in adapters_of(now.network):
            if self.way == "qr":
                left, values, right = _by_factors(adapter, now, reduced)
            else:
                mean = reduced.means[PRODUCT][adapter.b].double()
                left, values, right = torch.linalg.svd(mean, full_matrices=False)
            if values.any():
                model |= factors(adapter, model, left * values / adapter.scale, right)
        return state.replace(model=model)


def factors(adapter: Adapter, model: Tensors, b: Tensor, a: Tensor) -> dict[str, Tensor]:
    """Return A and B of rank R with the product of two matrices [R', in] and [out, R'].

    Of R' > R they have the first rows and columns. Of R' < R the other rows of A are the model's.
    """
    rank = min(len(a), adapter.rank)
    before, flat_b = model[adapter.a], torch.zeros_like(model[adapter.b]).flatten(1)
    flat_a = torch.cat([a[:rank].to(before.dtype), before.flatten(1)[rank:]])
    flat_b[:, :rank] = b[:, :rank].to(flat_b.dtype)
    return {
        adapter.a: flat_a.view_as(before),
        adapter.b: flat_b.view_as(model[adapter.b]),
    }


def _send(adapters: Sequence[Adapter], as_factors: bool, view: View, trained: Trained) -> Upload:
    """Send the products s_k B_k A_k, or their factors, and the other trained tensors."""
    if not as_factors:
        return send_products(adapters, view, trained)
    upload, rank = send_products(adapters, view, trained), rank_of(view)
    factors = [_factors(a, view.params, rank or a.rank) for a in adapters]
    rows = {name: factor for pair in factors for name, factor in pair}
    sums = {group: tensors for group, tensors in upload.sums.items() if group != PRODUCT}
    return replace(upload, sums=sums, rows={FACTORS: rows})


def _factors(adapter: Adapter, tensors: Tensors, rank: int) -> list[tuple[str, Tensor]]:
    """Return A_k [r, in] and s_k B_k [out, r], by name."""
    a, b = tensors[adapter.a].flatten(1)[:rank], tensors[adapter.b].flatten(1)[:, :rank]
    return [(adapter.a, a.contiguous()), (adapter.b, (b * adapter.scale_at(rank)).contiguous())]


def _by_factors(adapter: Adapter, now: Round, reduced: Reduced) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, S and V' of the mean product, by QR of the stacked factors."""
    uniform = now.weighting == "uniform"
    counts = np.ones(len(reduced.clients)) if uniform else np.asarray(reduced.samples)
    shares = dict(zip(reduced.clients, np.sqrt(counts / counts.sum()), strict=True))
    sent = {client: reduced.rows[client][FACTORS] for client in reduced.clients}  # ascending
    b, a = (
        torch.cat([rows[name].double() * shares[c] for c, rows in sent.items()], dim)
        for name, dim in ((adapter.b, 1), (adapter.a, 0))
    )
    (q_b, r_b), (q_a, r_a) = torch.linalg.qr(b), torch.linalg.qr(a.T)
    left, values, right = torch.linalg.svd(r_b @ r_a.T, full_matrices=False)
    return q_b @ left, values, right @ q_a.T
