"""FLoRA: clients' adapters are stacked and merged into the base, and drawn anew.

Source: Wang, Shen, He, Sun, Zhou and Li, "FLoRA: Federated Fine-Tuning Large Language Models with
Heterogeneous Low-Rank Adaptations", NeurIPS 2024, arXiv:2409.05976, algorithm 1; the authors' code,
github.com/ATP-1010/FederatedLLM.

    client k:  trains A_k [r, in], B_k [out, r] at its rank r, with the scale s_k of that rank
    server:    A <- [p_1 s_1 A_1; ...; p_m s_m A_m]        B <- [B_1, ..., B_m]
               W <- W + B A, which is sum_k p_k s_k B_k A_k
    then A is drawn anew, and B is 0

p_k as in FedAvg. Nothing is lost in the mean, and all that is learned is in the base, which is the
server's: it computes W, and keeps it in its checkpoints. Other trained parts, such as a head, are
averaged. Clients draw the same A from a seed, of which a client takes its first r rows.

The bytes down are those of the stacks of the rounds since a client last took part, of sum_k r rows
and columns each, or of W if it is smaller. Discrepancies: the scale is each client's here; that of
the padded variant in the authors' code is too large (32 against 2), and FedLLM-Factory leaves it
out. `init_a` is how A is drawn anew; the first A is the model's.

In the tables `stacked_rank` is the sum of the ranks of a round. Where layers have unequal ranks, a
client's rank is the largest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.api.columns import Column
from raysim.api.method import Metrics, Round, ServerState
from raysim.api.rules import Bases, Pass, Reduced
from raysim.methods.adapted import (
    PRODUCT,
    MovesBase,
    Ranked,
    bytes_at,
    send_products,
    with_scales,
)
from raysim.numbers.adapters import Adapter, adapters_of
from raysim.numbers.tensors import Tensors, nbytes, only, without

STACKED = "stacked"
"""Group of the server's state: clients that took part [n], ascending; the sum of ranks merged until
they last received the base [n]; and that of all rounds []."""


class Flora(MovesBase, Ranked):
    """FedAvg of the products of adapters, which are merged into the base after every round.

    Helps where clients' ranks differ, and where means of A and of B lose too much: the mean is
    exact, and of any rank. Costs the base, which moves: it is in the server's state and its
    checkpoints, and clients receive the adapters of all others of a round. Up, bytes are those of
    the client's rank, as in FedAvg.
    """

    own_server: ClassVar[str] = "merges adapters into the base"
    needs_mean: ClassVar[str] = "adapters, whose products are averaged"
    already_on_clients: ClassVar[str] = "the base as they last received it"
    bases: ClassVar[Bases | None] = {}
    columns: ClassVar[Sequence[Column]] = (*Ranked.columns, Column("stacked_rank"))

    init_a: Literal["uniform", "normal"] = Field(
        default="uniform",
        description="how A is drawn anew: uniform to 1 / sqrt(in), or normal of deviation 1 / R",
    )

    @property
    def deploys_client_models(self) -> bool:
        """True if clients have parts of their own: B is 0 after the merge, at any rank."""
        return super(Ranked, self).deploys_client_models

    def network(self, model: nn.Module) -> nn.Module:
        """Return the model, with scales that differ by client where ranks do."""
        return with_scales(model) if self.has_ranks else model

    def init(self, network: nn.Module) -> ServerState:
        """Start from the network as it was built, with nothing merged."""
        return super().init(network).replace(**{STACKED: _stacked({}, 0)})

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return FedAvg's pass at the clients' ranks, which send products."""
        pass_, adapters = super().training_pass(now, state), adapters_of(now.network)
        model, total = pass_.broadcast["model"], _total(state)
        base = only(model, self.moved(now.network))
        rest = without(model, base)
        fixed = bytes_at(adapters, rest, 0)
        sizes = (fixed, bytes_at(adapters, rest, None) - fixed, nbytes({"": base}))
        most = max(adapter.rank for adapter in adapters)
        received = partial(_received, sizes, most, _at(state), total)
        rules = replace(pass_.rules, finish=partial(send_products, adapters))
        return replace(pass_, rules=rules, bytes_down=received)

    def round_metrics(self, now: Round, state: ServerState, after: ServerState) -> Metrics:
        """Return the mean rank, and the sum of ranks that the round merged."""
        added = _total(after) - _total(state)
        return {**super().round_metrics(now, state, after), "stacked_rank": float(added)}

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Return the state with the merged weights, and with adapters drawn anew."""
        added = sum(self.ranks_of(now, state, reduced.clients).values())
        seen = {**_at(state), **dict.fromkeys(now.cohort, _total(state))}
        model = {**state.groups["model"], **reduced.means.get("model", {})}
        draws = now.generator("lora_A")
        for adapter in adapters_of(now.network):
            if adapter.b in reduced.means.get(PRODUCT, {}):
                model |= merged(adapter, model, reduced.means[PRODUCT][adapter.b])
            model[adapter.a] = self._drawn(adapter, model[adapter.a], draws)
            model[adapter.b] = torch.zeros_like(model[adapter.b])
        return state.replace(model=model, **{STACKED: _stacked(seen, _total(state) + added)})

    def _drawn(self, adapter: Adapter, a: Tensor, draws: torch.Generator) -> Tensor:
        """Return a new A, as peft draws it."""
        if self.init_a == "normal":
            return (torch.randn(a.shape, generator=draws) / adapter.rank).to(a.dtype)
        bound = 1 / math.sqrt(a[0].numel())
        return ((2 * torch.rand(a.shape, generator=draws) - 1) * bound).to(a.dtype)


def merged(adapter: Adapter, model: Tensors, change: Tensor) -> dict[str, Tensor]:
    """Return the weight of a layer with a change [out, in] added to it."""
    weight = model[adapter.weight]
    moved = weight.double() + adapter.in_weight(change.double(), weight)
    return {adapter.weight: moved.to(weight.dtype)}


def _received(
    sizes: tuple[int, int, int], most: int, at: Mapping[int, int], total: int, client: int
) -> int:
    """Return the bytes that a client receives.

    Args:
        sizes: Bytes of the tensors that are sent as they are, of all adapters, and of the weights
            that move.
        most: The largest rank of the adapters, which counts as that of all.
        at: The sum of ranks that each client has merged.
        total: The sum of the ranks of all rounds.
        client: The client.
    """
    fixed, adapters, base = sizes
    return fixed + min(adapters * (total - at.get(client, 0)) // most, base)


def _stacked(seen: Mapping[int, int], total: int) -> dict[str, Tensor]:
    clients = sorted(seen)
    values = {"client": clients, "at": [seen[client] for client in clients], "total": total}
    return {name: torch.tensor(value, dtype=torch.int64) for name, value in values.items()}


def _total(state: ServerState) -> int:
    return int(state.groups[STACKED]["total"])


def _at(state: ServerState) -> dict[int, int]:
    """Return the sum of ranks that each client has merged into its base."""
    group = state.groups[STACKED]
    return dict(zip(group["client"].tolist(), group["at"].tolist(), strict=True))
