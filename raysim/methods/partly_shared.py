"""Partial sharing: a part of the model stays on each client, the rest is federated averaging.

The base of FedPer, FedRep, FedBABU, LG-FedAvg, FedBN and `local`, which differ in the part:

    client k:  starts from (w, v_k), trains both      w the shared tensors, v_k its own ones
    server:    w <- sum_k p_k w_k                     p_k as in FedAvg

A client's own tensors lie in its state; they are neither sent nor counted. The server keeps their
common start. A client that never took part begins with it, and the global model is evaluated with
it, although no client deploys that model. Frozen parameters are not among the clients' own tensors:
all clients have them from the start.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BeforeValidator
from torch import nn

from raysim.api.method import Round, ServerState
from raysim.api.rules import Pass, Rules, Trained, Upload, View, send_model
from raysim.errors import SettingsError
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import Groups, Tensors, base_of, only, state_of, without

OWN = "own"
"""Group of a client's own tensors in its state, and their names in the server's `info`."""
NONE, ALL = "none", "all"


def _listed(value: Any) -> Any:
    """Return parts, a list or written as `a,b` or `[a,b]`, as a tuple; none in it are `none`."""
    if value is None or value in ("[]", [], ()):
        return (NONE,)
    if isinstance(value, str):
        return tuple(part.strip() for part in value.strip("[]").split(","))
    return tuple(value) if isinstance(value, list) else value


Parts = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""Parts of a network: modules and tensors by name or pattern, `none`, `all`."""


def names_of(parts: Parts, network: nn.Module, setting: str) -> frozenset[str]:
    """Return the names of the tensors of some parts of a network.

    Args:
        parts: Each the name of a module (a stage such as `head`) or of a tensor, a pattern of
            tensors' names (`*.bias`), `none` or `all`.
        network: The network.
        setting: The setting that has the parts, for the error.

    Raises:
        SettingsError: a part names no tensor of the network, or only frozen ones.
    """
    known, named = state_of(network), set[str]()
    for part in parts:
        if part == NONE:
            continue
        matching = {n for n in known if part == ALL or _is_in(n, part)}
        if not matching:
            raise SettingsError(f"{setting}={','.join(parts)}: {_refusal(part, network)}")
        named |= matching
    return frozenset(named)


def _refusal(part: str, network: nn.Module) -> str:
    """Return why a part names no tensor that a client may have for itself."""
    base, first = base_of(network), {p: name for name, p in network.named_parameters()}
    names = dict(network.named_parameters(remove_duplicate=False))
    tensors = {name: name for name in base} | {name: first[p] for name, p in names.items()}
    tensor = next((tensor for name, tensor in tensors.items() if _is_in(name, part)), "")
    tied = f"is {tensor} by another name (tied weights)" if not _is_in(tensor, part) else ""
    if tensor in base:
        frozen = f"{tied}, which is frozen" if tied else "is frozen"
        return (
            f"{part!r} {frozen} in the model, so that all clients have the same; choose a part that"
            " is trained"
        )
    if tensor:
        return f"{part!r} {tied}; choose {tensor}, or another part"
    known = state_of(network)
    modules = [n for n, _ in network.named_children() if any(_is_in(name, n) for name in known)]
    lacks = "no tensors in" if part in dict(network.named_modules()) else "no"
    return (
        f"the model has {lacks} {part!r}; allowed are {NONE}, {ALL}, its modules"
        f" ({', '.join(modules)}, ...), its tensors ({next(iter(known))}, ...), and patterns of"
        " tensors' names such as *.bias"
    )


def _is_in(name: str, part: str) -> bool:
    """Return whether a tensor is of a part: of this name or pattern, or of a module's."""
    return fnmatchcase(name, part) or name.startswith(f"{part}.")


class PartlyShared(FedAvg):
    """FedAvg of the shared tensors, each client with its own others."""

    @abstractmethod
    def own_tensors(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the tensors that stay on the clients.

        Raises:
            SettingsError: the method's settings do not suit the network.
        """

    def init(self, network: nn.Module) -> ServerState:
        """Start from the network as it was built, and note which tensors are the clients'."""
        state = super().init(network)
        names = self.own_tensors(network)
        return ServerState(state.groups, {**state.info, OWN: json.dumps(sorted(names))})

    def client_init(self, state: ServerState) -> Groups:
        """Start a client's own tensors at their common start."""
        names = _own_names(state)
        return {OWN: only(state.groups["model"], names)} if names else {}

    def rules(self) -> Rules:
        """Return the rules of local training: from the shared and the own tensors, by SGD."""
        return Rules(start=start, finish=finish)

    def broadcast(self, state: ServerState) -> Groups:
        """Return the shared tensors of the model; no group if there are none."""
        shared = without(state.groups["model"], _own_names(state))
        return {"model": shared} if shared else {}

    def deployment(self, now: Round, state: ServerState) -> Pass | None:
        """Deploy the shared tensors of now with the client's own ones, without training."""
        return Pass(now.cohort, self.broadcast(state), Rules(start=start))

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass] | None:
        """Deploy the shared and the own tensors, as the client has trained them."""
        return self.trained_alone(now, state)


def start(broadcast: Groups, state: Groups, personal: Groups) -> Tensors:
    """Return the broadcast tensors with the client's own ones."""
    return {**broadcast.get("model", {}), **state.get(OWN, {})}


def finish(view: View, trained: Trained) -> Upload:
    """Send the shared tensors, if there are any, and keep the client's own ones."""
    kept = view.state.get(OWN, {})
    upload = send_model(view, trained) if "model" in view.broadcast else Upload()
    return replace(upload, state={OWN: only(view.params, kept)} if kept else {})


def _own_names(state: ServerState) -> frozenset[str]:
    return frozenset(json.loads(str(state.info[OWN])))
