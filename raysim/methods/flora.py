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
from typing import ClassVar, Literal, NamedTuple

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
"""Group of the server's state: clients that have missed less than W [n], ascending; the sum of
ranks merged until they last received the base [n]; and that of all rounds []."""


class Flora(MovesBase, Ranked):
    """FedAvg of the products of adapters, which are merged into the base after every round.

    Helps where clients' ranks differ, and where means of A and of B lose too much: the mean is
    exact, and of any rank. Costs the base, which moves: it is in the server's state and its
    checkpoints, and clients receive the adapters of all others of a round. The server also keeps a
    number of each client that took part, until the stacks since then are as large as W. Up, bytes
    are those of the client's rank, as in FedAvg.
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
        sizes = self._sizes(now, pass_.broadcast["model"])
        received = partial(_received, sizes, _at(state), _total(state))
        rules = replace(pass_.rules, finish=partial(send_products, adapters))
        return replace(pass_, rules=rules, bytes_down=received)

    def _sizes(self, now: Round, model: Tensors) -> _Sizes:
        adapters = adapters_of(now.network)
        base = only(model, self.moved(now.network))
        rest = without(model, base)
        fixed = bytes_at(adapters, rest, 0)
        most = max(adapter.rank for adapter in adapters)
        whole = bytes_at(adapters, rest, None) - fixed
        return _Sizes(fixed, whole, most, nbytes({"": base}))

    def round_metrics(self, now: Round, state: ServerState, after: ServerState) -> Metrics:
        """Return the mean rank, and the sum of ranks that the round merged."""
        added = _total(after) - _total(state)
        return {**super().round_metrics(now, state, after), "stacked_rank": float(added)}

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Return the state with the merged weights, and with adapters drawn anew."""
        added = sum(self.ranks_of(now, state, reduced.clients).values())
        sizes, total = self._sizes(now, self.broadcast(state)["model"]), _total(state) + added
        seen = {**_at(state), **dict.fromkeys(now.cohort, _total(state))}
        seen = {c: at for c, at in seen.items() if sizes.stack(total - at) < sizes.base}
        model = {**state.groups["model"], **reduced.means.get("model", {})}
        draws = now.generator("lora_A")
        for adapter in adapters_of(now.network):
            if adapter.b in reduced.means.get(PRODUCT, {}):
                model |= merged(adapter, model, reduced.means[PRODUCT][adapter.b])
            model[adapter.a] = self._drawn(adapter, model[adapter.a], draws)
            model[adapter.b] = torch.zeros_like(model[adapter.b])
        return state.replace(model=model, **{STACKED: _stacked(seen, total)})

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


class _Sizes(NamedTuple):
    """Bytes of what clients receive.

    Attributes:
        fixed: Of tensors that are sent as they are.
        adapters: Of all adapters.
        most: The largest rank of the adapters, which counts as that of all.
        base: Of the weights that move.
    """

    fixed: int
    adapters: int
    most: int
    base: int

    def stack(self, rank: int) -> int:
        """Return the bytes of adapters of some rank."""
        return self.adapters * rank // self.most


def _received(sizes: _Sizes, at: Mapping[int, int], total: int, client: int) -> int:
    """Return the bytes that a client receives.

    Args:
        sizes: Bytes of the parts.
        at: The sum of ranks that clients have merged; of others it is 0.
        total: The sum of the ranks of all rounds.
        client: The client.
    """
    return sizes.fixed + min(sizes.stack(total - at.get(client, 0)), sizes.base)


def _stacked(seen: Mapping[int, int], total: int) -> dict[str, Tensor]:
    clients = sorted(seen)
    values = {"client": clients, "at": [seen[client] for client in clients], "total": total}
    return {name: torch.tensor(value, dtype=torch.int64) for name, value in values.items()}


def _total(state: ServerState) -> int:
    return int(state.groups[STACKED]["total"])


def _at(state: ServerState) -> dict[int, int]:
    """Return the sum of ranks that clients have merged into their base, where it is known."""
    group = state.groups[STACKED]
    return dict(zip(group["client"].tolist(), group["at"].tolist(), strict=True))
