"""Low-rank adapters: the base of methods whose server does more than average A and B.

    y = W x + s B A x        W frozen, A [R, in], B [out, R], s the scale

Without such a method, an adapter is a part of the model like others: FedAvg averages A and B, which
is FedIT. Everything else that is trained, such as a head, is averaged; `own` leaves parts of it to
the clients (FedPer's rule). Parts that the model freezes stay as they are.

A client of rank r trains r rows of A and r columns of B. The others are 0, which is as if it had
none: they have no gradient, and stay 0. `ranks` gives each client its r. A client receives r rows
and columns with its rank, in four bytes, and sends r rows and columns.

Legend: R rank of the network's adapters, r rank of a client.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from raysim.api.columns import Column
from raysim.api.components import imported
from raysim.api.method import Metrics, Passes, Round, ServerState
from raysim.api.own_loop import checked_function
from raysim.api.rules import Pass, Rules, Trained, Upload, View
from raysim.errors import SettingsError
from raysim.methods import partly_shared
from raysim.methods.partly_shared import NONE, PartlyShared, Parts, names_of
from raysim.numbers.adapters import (
    Adapter,
    Scales,
    adapted_layers,
    adapters_beyond_matrices,
    adapters_of,
)
from raysim.numbers.client_tables import check_once, read_table
from raysim.numbers.tensors import Groups, Tensors, nbytes, only, parameter_names, without
from raysim.user_input.user_modules import TARGET

RANK = "rank"
"""Group that a client alone receives, with its rank r."""
PRODUCT = "product"
"""Group of uploads with s_k B_k A_k, by the name of B."""
HALF = {torch.bfloat16, torch.float16}
RANK_TYPE = torch.int32
RANKS = "ranks"
"""Group of the server's state: clients of known rank [n], ascending, and their ranks [n]."""


def _listed(value: Any) -> Any:
    """Return ranks as a tuple if they are one number, a list, or written as `2,4`."""
    if isinstance(value, int):
        return (value,)
    if isinstance(value, str):
        parts = [part.strip() for part in value.strip("[]").split(",")]
        return tuple(map(int, parts)) if all(map(str.isdecimal, parts)) else value
    return tuple(value) if isinstance(value, list) else value


Rank = Annotated[int, Field(ge=1)]
Ranks = Annotated[tuple[Rank, ...] | str | None, BeforeValidator(_listed)]
"""Ranks of clients: numbers that clients take in turn, a table's path, or a function's name."""


class Adapted(PartlyShared):
    """FedAvg of a model with adapters, which a server combines in another way."""

    own: Parts = Field(
        default=(NONE,),
        description="each client's own parts in addition to the adapters, such as a head",
    )

    def own_tensors(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the chosen tensors.

        Raises:
            SettingsError: they have adapters, or the network has none that is trained as a whole,
                or has one that is more or other than two matrices.
        """
        names, trained = names_of(self.own, network, "method.own"), parameter_names(network)
        adapters = adapters_of(network)
        if beyond := adapters_beyond_matrices(network):
            raise SettingsError(
                f"method.name={self.title}: needs adapters of two matrices, A and B; {beyond};"
                " method.name=fedavg takes any adapters"
            )
        if not adapters:
            raise SettingsError(
                f"method.name={self.title}: needs a model with adapters; set model.lora.rank, or"
                " wrap the task's model with peft"
            )
        for name in (name for adapter in adapters for name in (adapter.a, adapter.b)):
            if name not in trained:
                raise SettingsError(
                    f"method.name={self.title}: needs adapters of which A and B are trained; {name}"
                    " is frozen"
                )
            if name in names:
                raise SettingsError(
                    f"method.own={','.join(self.own)}: must leave the adapters to the server, and"
                    f" has {name}; method.name=fedper leaves a part of them to the clients"
                )
        return names

    @property
    def deploys_client_models(self) -> bool:
        """True if clients have parts of their own."""
        return self.own != (NONE,)

    def round(self, now: Round, state: ServerState) -> Passes:
        """Run FedAvg's round, and add the metrics that need more than the state after it."""
        after, metrics = yield from super().round(now, state)
        return after, {**metrics, **self.round_metrics(now, state, after)}

    def round_metrics(self, now: Round, state: ServerState, after: ServerState) -> Metrics:
        """Return the method's own metrics of a round, given the states before and after it."""
        return {}

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass] | None:
        """Deploy the model as the client has trained it."""
        pass_ = self.training_pass(now, state)
        return [replace(pass_, rules=replace(pass_.rules, finish=partly_shared.finish))]


class MovesBase(Adapted):
    """FedAvg of a model with adapters, whose server also changes the weights that have them."""

    real: ClassVar[bool] = True

    def notes(self, network: nn.Module) -> Sequence[str]:
        """Return a warning where the weights that move hold too few digits."""
        half = {network.get_parameter(name).dtype for name in self.moved(network)} & HALF
        return [
            f"warning: method.name={self.title} adds small changes to weights of"
            f" {str(dtype).removeprefix('torch.')}, which rounds most of them off; use"
            " model.dtype=float32"
            for dtype in sorted(half, key=str)
        ]

    def moved(self, model: nn.Module) -> frozenset[str]:
        """Return the names of the frozen weights that have adapters; `init` refuses others."""
        frozen = {name for name, tensor in model.named_parameters() if not tensor.requires_grad}
        return frozenset(adapter.weight for adapter in adapters_of(model)) & frozen

    def init(self, network: nn.Module) -> ServerState:
        """Start from the network as it was built.

        Raises:
            SettingsError: the network has no adapters, or a weight with one is trained, or also
                another layer's.
        """
        state = super().init(network)
        named = [*network.named_parameters(remove_duplicate=False)]
        places = Counter(id(tensor) for _, tensor in named)
        for name in (adapter.weight for adapter in adapters_of(network)):
            weight, but = network.get_parameter(name), ""
            if weight.requires_grad:
                but = "trained by clients; freeze it (model.train)"
            elif places[id(weight)] > 1:
                but = "the weight of another layer; choose other layers (model.lora.targets)"
            if but:
                raise SettingsError(
                    f"method.name={self.title}: changes weights that have adapters, and {name} is"
                    f" also {but}"
                )
        return state


class Ranked(Adapted):
    """FedAvg of a model with adapters, of which each client has its own rank."""

    columns: ClassVar[Sequence[Column]] = (Column("rank"),)
    # no kept optimizer: the server cuts or draws anew what its moments belong to
    needs_local: ClassVar[Mapping[str, object]] = {"keep": False}
    without_ranks: ClassVar[str] = "leave out method.ranks"
    """Advice that gives all clients the network's ranks."""

    ranks: Ranks = Field(
        default=None,
        description="ranks of clients: numbers taken in turn, a table (client, rank) or"
        " module:function(client); none: the model's",
    )

    @property
    def has_ranks(self) -> bool:
        """True if clients may have other ranks than the network."""
        return self.ranks is not None

    @property
    def deploys_client_models(self) -> bool:
        """True if clients have ranks or parts of their own."""
        return self.has_ranks or super().deploys_client_models

    def init(self, network: nn.Module) -> ServerState:
        """Start from the network as it was built, with the ranks of a table.

        Raises:
            SettingsError: the network has no adapters, or of several ranks; a rank is not allowed.
            DataError: the table cannot be read.
        """
        state = super().init(network)
        found = {adapter.rank for adapter in adapters_of(network)}
        if self.has_ranks and len(found) > 1:
            raise SettingsError(
                f"method.name={self.title}: needs adapters of one rank where clients have their"
                f" own; the model has ranks {', '.join(map(str, sorted(found)))}; give it one, or"
                f" {self.without_ranks}"
            )
        if isinstance(self.ranks, tuple):
            for rank in self.ranks or (0,):
                self._checked(rank, max(found))
        elif self.ranks is not None and TARGET.fullmatch(self.ranks):
            self._function()
        elif self.ranks is not None:
            return with_ranks(state, self._table(self.ranks, max(found)))
        return state

    def ranks_of(self, now: Round, state: ServerState, clients: Sequence[int]) -> dict[int, int]:
        """Return the ranks r of clients.

        Raises:
            SettingsError: a rank is not allowed, or the table lacks a client.
        """
        most = max(adapter.rank for adapter in adapters_of(now.network))
        if not self.has_ranks:
            return dict.fromkeys(clients, most)
        known = known_ranks(state, clients)
        return {c: known.get(c) or self._checked(self._given(c, most), most, c) for c in clients}

    def round_metrics(self, now: Round, state: ServerState, after: ServerState) -> Metrics:
        """Return the mean rank of the cohort, if clients have their own ranks."""
        if not self.has_ranks:
            return {}
        ranks = [*self.ranks_of(now, state, now.cohort).values()]
        return {RANK: float(np.mean(ranks))} if ranks else {}

    def _given(self, client: int, most: int) -> Any:
        """Return the rank that the setting gives a client."""
        if self.ranks is None:
            return most
        if isinstance(self.ranks, tuple):
            return self.ranks[client % len(self.ranks)]
        if not TARGET.fullmatch(self.ranks):
            raise SettingsError(f"method.ranks={self.ranks}: client {client} is missing")
        return self._function()(client)

    def _function(self) -> Callable[[int], Any]:
        key = f"method.ranks={self.ranks}"
        function: Callable[[int], Any] = checked_function(
            imported(str(self.ranks), key), key, "client"
        )
        return function

    def _table(self, path: str, most: int) -> dict[int, int]:
        """Return the ranks that a table has, by client."""
        table = read_table(Path(path), "method.ranks")
        if RANK not in table:
            raise SettingsError(f"method.ranks={path}: must have the columns client, {RANK}")
        check_once(Path(path), "method.ranks", table["client"])
        pairs = zip(table["client"].tolist(), table[RANK].tolist(), strict=True)
        return {int(c): self._checked(rank, most, int(c)) for c, rank in pairs}

    def _checked(self, rank: Any, most: int, client: int | None = None) -> int:
        given = ",".join(map(str, self.ranks)) if isinstance(self.ranks, tuple) else self.ranks
        whole = isinstance(rank, int | float | np.number) and float(rank).is_integer()
        if not whole or not 1 <= rank <= most:
            of_client = "" if client is None else f" of client {client}"
            raise SettingsError(
                f"method.ranks={given}: the rank{of_client} is {rank!r:.40}; must be 1 to {most},"
                " the rank of the model's adapters (model.lora.rank)"
            )
        return int(rank)

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return FedAvg's pass, in which each client trains adapters of its own rank."""
        pass_ = super().training_pass(now, state)
        if not self.has_ranks:
            return pass_
        adapters, ranks = adapters_of(now.network), self.ranks_of(now, state, pass_.clients)
        halves = only(pass_.broadcast["model"], [n for a in adapters for n in (a.a, a.b)])
        bytes_up = partial(_bytes, adapters, {"": halves}, ranks)
        return replace(self.at_ranks(pass_, now, state), bytes_up=bytes_up)

    def deployment(self, now: Round, state: ServerState) -> Pass:
        """Deploy the adapters at the client's rank, with its own parts."""
        pass_ = Pass(now.cohort, self.broadcast(state), Rules(start=partly_shared.start))
        return self.at_ranks(pass_, now, state)

    def at_ranks(self, pass_: Pass, now: Round, state: ServerState) -> Pass:
        """Return a pass in which clients start from adapters of their own rank."""
        if not self.has_ranks:
            return pass_
        adapters = adapters_of(now.network)
        ranks = self.ranks_of(now, state, pass_.clients)
        start = partial(_at_rank, adapters, pass_.rules.start)
        return replace(
            pass_,
            rules=replace(pass_.rules, start=start),
            personal={
                c: {RANK: {RANK: torch.tensor(r, dtype=RANK_TYPE)}} for c, r in ranks.items()
            },
            bytes_down=partial(_bytes, adapters, pass_.broadcast, ranks),
        )


def with_scales(model: nn.Module) -> nn.Module:
    """Return a copy of a model in which the scales of adapters are buffers."""
    scaled = copy.deepcopy(model)
    for _, layer in [*adapted_layers(scaled)]:
        layer.scaling = Scales(layer.scaling)
    return scaled


def rank_of(view: View) -> int | None:
    """Return the client's rank; None if it is the network's."""
    return int(view.personal[RANK][RANK]) if view.personal else None


def send_products(adapters: Sequence[Adapter], view: View, trained: Trained) -> Upload:
    """Send the products s_k B_k A_k in place of A_k and B_k, and count the bytes of these."""
    upload, rank = partly_shared.finish(view, trained), rank_of(view)
    names = {name for a in adapters for name in (a.a, a.b, a.scaling, a.weight)}
    names -= {a.weight for a in adapters if a.weight in view.trainable}
    sent = without(upload.sums["model"], names - {a.a for a in adapters} - {a.b for a in adapters})
    products = {a.b: a.product(view.params) * a.scale_at(rank or a.rank) for a in adapters}
    others = without(sent, names)
    return replace(
        upload,
        sums={**({"model": others} if others else {}), PRODUCT: products},
        bytes_up=bytes_at(adapters, sent, rank),
        metrics={RANK: float(rank)} if rank else {},
    )


def known_ranks(state: ServerState, clients: Sequence[int]) -> dict[int, int]:
    """Return the ranks that the server knows of some clients, from a table or an upload."""
    if RANKS not in state.groups:
        return {}
    listed, ranks = (state.groups[RANKS][name] for name in ("client", RANK))
    wanted = torch.tensor([*clients], dtype=torch.int64)
    places = torch.searchsorted(listed, wanted).clamp(max=len(listed) - 1)
    rows = zip(wanted.tolist(), listed[places].tolist(), ranks[places].tolist(), strict=True)
    return {client: rank for client, found, rank in rows if client == found}


def with_ranks(state: ServerState, ranks: Mapping[int, int]) -> ServerState:
    """Return the state in which the server knows the ranks of further clients, or other ones."""
    if not ranks:
        return state
    further = {"client": torch.tensor([*ranks]), RANK: torch.tensor([*ranks.values()])}
    if group := state.groups.get(RANKS):
        others = torch.isin(group["client"], further["client"], invert=True)
        further = {name: torch.cat([group[name][others], t]) for name, t in further.items()}
    order = further["client"].argsort()
    return state.replace(**{RANKS: {name: t[order] for name, t in further.items()}})


def bytes_at(adapters: Sequence[Adapter], tensors: Tensors, rank: int | None) -> int:
    """Return the bytes of tensors, with the adapters at a rank and without scales.

    None is each adapter's own rank.
    """
    sent = without(tensors, [adapter.scaling for adapter in adapters])
    if rank is None:
        return nbytes({"": sent})
    halves = {name: a.rank for a in adapters for name in (a.a, a.b) if name in sent}
    cut = sum(nbytes({"": {n: sent[n]}}) * rank // whole for n, whole in halves.items())
    return nbytes({"": without(sent, halves)}) + cut


def _bytes(
    adapters: Sequence[Adapter], groups: Groups, ranks: Mapping[int, int], client: int
) -> int:
    return sum(bytes_at(adapters, tensors, ranks[client]) for tensors in groups.values())


def at_rank(adapters: Sequence[Adapter], tensors: Tensors, rank: Tensor) -> dict[str, Tensor]:
    """Return tensors with adapters cut to a rank [].

    Where scales are tensors they become those of that rank, and B is divided by as much.
    """
    cut = dict(tensors)
    for adapter in adapters:
        cut |= below_rank(adapter, tensors, rank)
        if adapter.scaling in tensors:
            scale, b = adapter.scale_at(rank), cut[adapter.b]
            cut[adapter.scaling] = scale.to(tensors[adapter.scaling])
            cut[adapter.b] = b * (adapter.scale / scale).to(b.dtype)
    return cut


def below_rank(
    adapter: Adapter, tensors: Tensors, rank: int | Tensor, above: Tensors | None = None
) -> dict[str, Tensor]:
    """Return A and B with their first rows and columns, and above a rank others, or 0."""
    a, b = tensors[adapter.a], tensors[adapter.b]
    kept = torch.arange(len(a), device=a.device) < rank
    of_a, of_b = (above[adapter.a], above[adapter.b]) if above else (0, 0)
    return {
        adapter.a: torch.where(_rows(kept, a), a, of_a),
        adapter.b: torch.where(_rows(kept, b.transpose(0, 1)).transpose(0, 1), b, of_b),
    }


def _rows(kept: Tensor, a: Tensor) -> Tensor:
    """Return flags of rows [R] in the number of dimensions of a tensor [R, ...]."""
    return kept.view(-1, *[1] * (a.dim() - 1))


Start = Callable[[Groups, Groups, Groups], Tensors]


def _at_rank(
    adapters: Sequence[Adapter], start: Start, broadcast: Groups, state: Groups, personal: Groups
) -> Tensors:
    return at_rank(adapters, start(broadcast, state, personal), personal[RANK][RANK])
