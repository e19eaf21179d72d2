"""Chain: several methods at once, each with its own settings.

Source: the composition of gradient transformations in DeepMind's Optax (optax.chain), carried over
to the rules of local training. No paper describes it.

    client:  rules of all methods as `raysim.chain` merges them: penalties and transforms in order
    server:  the updates of all methods in turn; each takes the model of the one before as the mean

A method that sends no model, FedNova, moves the model of the round before. It stands before methods
with a server that does more than take the mean, such as SCAFFOLD. A rule of the server, such as
`server.name=adam`, is no member of the chain; it moves the model last.

`methods` maps a method's name to its settings, in order; {} takes its defaults, as in
`method.name=chain method.methods.fedprox.mu=0.1 method.methods.scaffold={}`.

A name with dots, as in package.module:Class, is written in JSON or in a file. Each method must be a
FedAvg that keeps FedAvg's `round`. Groups of the server's state, of the broadcast and of the
clients' state need different names in different methods, except "model". If one method leaves
tensors to the clients (FedPer's head), no method sends them. If the clients of one method send no
model (FedNova), no other method sends it. A method that sends no tensor of the model (`local`) does
not go with one that moves the model or compares with it.
FedBuff, which discounts stale updates, goes only with methods that send and average FedAvg's
groups. An empty chain is FedAvg.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import Field, model_validator
from torch import nn

from raysim.api.chain import Join, chain, only
from raysim.api.component_fields import ordered_field
from raysim.api.components import called
from raysim.api.method import METHODS, Method, Metrics, Round, ServerState
from raysim.api.rules import (
    CHANGE,
    Finish,
    Pass,
    Reduced,
    Rules,
    Trained,
    Upload,
    View,
    send_model,
)
from raysim.errors import SettingsError
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import Groups, without
from raysim.user_input import as_typed

KEY, MODEL = "method.methods", "model"
V = TypeVar("V")
Methods = Mapping[str, FedAvg]
"""Chained methods in order, by name."""
PLAIN = FedAvg()


class Chain(FedAvg):
    """Several methods at once, for example FedProx and SCAFFOLD.

    Helps to study how methods combine, without a class for each combination. Costs the sum of its
    methods' costs in time, memory and bytes; the model travels once.
    """

    methods: Annotated[Mapping[str, FedAvg], *ordered_field(METHODS, KEY)] = Field(
        default={}, description="methods in order, by name: their settings"
    )

    @model_validator(mode="after")
    def _rules_chain(self) -> Chain:
        for name, member in self.methods.items():
            if why := _why_alone(member):
                raise SettingsError(f"{KEY}.{name}: cannot be chained: {why}")
        try:
            check_pulls(self.methods)
            check_single(self.methods)
            check_local(self.methods)
            self.rules()
            for name, join in self._joined.items():
                if join is only:
                    self._only(name)
            if len({member.weighting for member in self.methods.values()} - {None}) > 1:
                raise SettingsError("two methods each set the weighting of the mean")
            self._check_discount()
            check_servers(self.methods)
        except SettingsError as error:
            raise SettingsError(f"{KEY}: {error}") from error
        return self

    @property
    def sending(self) -> Method:
        """The only method with uploads of more than the model, or else the chain."""
        senders = [m for m in self.methods.values() if m.rules().finish is not send_model]
        return self if len(senders) != 1 else senders[0]

    def key_needing(self, name: str) -> str:
        """Return the key of the method that needs a `local` setting, the last if several do."""
        return [f"{KEY}.{n}" for n, member in self.methods.items() if name in member.needs_local][
            -1
        ]

    def notes(self, network: nn.Module) -> Sequence[str]:
        """Return the lines of all methods."""
        return [line for method in self.methods.values() for line in method.notes(network)]

    def moved(self, model: nn.Module) -> frozenset[str]:
        """Return the names of the frozen parameters that a server of the methods changes."""
        return frozenset[str]().union(*(m.moved(model) for m in self.methods.values()))

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network as the methods wrap it in turn."""
        for member in self.methods.values():
            model = member.network(model)
        return model

    def rules(self) -> Rules:
        """Return the rules of all methods, chained."""
        return chain(*(member.rules() for member in self.methods.values()))

    def init(self, network: nn.Module) -> ServerState:
        """Merge the states of all methods; `info` names the method that keeps each group."""
        states = {name: member.init(network) for name, member in self.methods.items()}
        of_members = {name: without_model(state.groups) for name, state in states.items()}
        owners = {_owner_of(group): name for name, groups in of_members.items() for group in groups}
        groups = _merged("server state", of_members.values())
        info = _merged("server state", [owners, *(state.info for state in states.values())])
        state = ServerState({**super().init(network).groups, **groups}, info)
        self.broadcast(state)  # refuses names that two of them use
        self.client_init(state)
        check_kept_back(self.methods, state)
        return state

    def client_init(self, state: ServerState) -> Groups:
        """Merge the client states of all methods."""
        return _merged("client state", [m.client_init(state) for m in self.methods.values()])

    def client_bytes(self, state: ServerState) -> int:
        """Return the bytes that a client keeps for all methods."""
        return sum(member.client_bytes(state) for member in self.methods.values())

    def round_state_bytes(self, state: ServerState) -> int:
        """Return the bytes of round state that a client keeps for all methods."""
        return sum(member.round_state_bytes(state) for member in self.methods.values())

    def broadcast(self, state: ServerState) -> Groups:
        """Merge the methods' broadcasts; the model is sent once, without tensors that one keeps."""
        broadcasts = [member.broadcast(state) for member in self.methods.values()]
        model = super().broadcast(state)[MODEL]
        sent = {
            n: t
            for n, t in model.items()
            if all(n in groups.get(MODEL, {}) for groups in broadcasts)
        }
        others = _merged("broadcast", map(without_model, broadcasts))
        return {**({MODEL: sent} if sent else {}), **others}

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return one pass for all methods, with their changes of FedAvg's."""
        plain = replace(super().training_pass(now, state), weighting=None)
        passes = [member.training_pass(now, state) for member in self.methods.values()]
        changes: dict[str, Any] = {}
        for part in fields(Pass):
            if part.name not in ("broadcast", "rules", "bases"):
                default = getattr(plain, part.name)
                values = [getattr(pass_, part.name) for pass_ in passes]
                changed = [v for v in values if type(v) is not type(default) or v != default]
                if any(value != changed[0] for value in changed):
                    raise SettingsError(f"{KEY}: two methods each set the pass's {part.name}")
                changes[part.name] = changed[0] if changed else default
        bases = {
            group: base for pass_ in (plain, *passes) for group, base in pass_.moved_from.items()
        }
        known = {*plain.broadcast, CHANGE}
        bases = {group: base for group, base in bases.items() if base in known}
        averages = all(map(sends_model, self.methods.values()))
        finish = partial(_send_needed, plain.rules.finish, averages)
        return replace(plain, rules=replace(plain.rules, finish=finish), bases=bases, **changes)

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass] | None:
        """Return the training pass, unless a method deploys the model of another pass."""
        plain = FedAvg.deployment_after
        if any(type(member).deployment_after is not plain for member in self.methods.values()):
            return None
        return super().deployment_after(now, state)

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Update the state by each method in turn, which takes the model of the one before as mean.

        A method sees the state before the round, and no means of others' groups.
        """
        if not self.methods:
            return super().server_update(now, state, reduced)
        groups, info = {**state.groups}, {**state.info}
        groups[MODEL] = {**groups[MODEL], **reduced.means.get(MODEL, {})}
        for name, member in self.methods.items():
            others = {g for g in groups if g != MODEL and info.get(_owner_of(g), name) != name}
            means = {g: mean for g, mean in reduced.means.items() if g not in others}
            means[MODEL] = groups[MODEL]
            updated = member.server_update(now, state, replace(reduced, means=means))
            groups |= {g: tensors for g, tensors in updated.groups.items() if g not in others}
            info |= {
                key: value for key, value in updated.info.items() if value != state.info.get(key)
            }
            info |= {
                _owner_of(group): name for group in updated.groups.keys() - state.groups.keys()
            }
        return ServerState(groups, info)

    def metrics(self, state: ServerState) -> Metrics:
        """Merge the methods' own metrics."""
        return _merged("metrics", [member.metrics(state) for member in self.methods.values()])

    def _check_discount(self) -> None:
        """Check that a method discounts only its own upload.

        The factor of a stale update multiplies all groups that a client sends, and no weight.
        """
        discounting = self._only("discount")
        for name, member in self.methods.items() if discounting else ():
            plain = updates_plainly(member) and member.rules().finish is send_model
            if member is not discounting and not plain:
                (first,) = (n for n, m in self.methods.items() if m is discounting)
                raise SettingsError(
                    f"{name} cannot be chained with {first}, which discounts stale updates: its"
                    " clients must send the model and keep nothing, and its server must take the"
                    " mean"
                )

    def _only(self, hook: str) -> FedAvg | None:
        """Return the only method that overrides a hook, or None."""
        plain = getattr(FedAvg, hook)
        owners = {n: m for n, m in self.methods.items() if getattr(type(m), hook) is not plain}
        if len(owners) > 1:
            raise SettingsError(f"{' and '.join(owners)} each set their own {hook}")
        return next(iter(owners.values()), None)


def _why_alone(method: Method) -> str:
    """Return why a method cannot be chained; empty if it can."""
    if not isinstance(method, FedAvg) or type(method).round is not FedAvg.round:
        return "its round is not FedAvg's"
    if isinstance(method, Chain):
        return "it is a chain; name its methods next to the others"
    if claims := [claim for claim in method._claims if getattr(method, claim)]:
        return f"it claims {claims[0]}, which a chain would not"
    if method.selection:
        return "it brings its own selection of clients"
    if method.server_rule:
        return f"its server takes its own steps; set {called(method.server_rule)} in its place"
    return "it has no clients" if method.pooled else ""


class _Joined:
    """Statement of a chain, joined from its methods' statements."""

    def __init__(self, name: str, join: Join) -> None:
        """Take the name of a constant or property of methods, and how it is joined."""
        self._name, self._join = name, join

    def __get__(self, chained: Chain | None, kind: type[Chain]) -> Any:
        """Return it, or FedAvg's where there are no methods."""
        members = chained.methods.values() if chained else ()
        return self._join([getattr(member, self._name) for member in (PLAIN, *members)])


for _name, _join in FedAvg._joined.items():
    setattr(Chain, _name, _Joined(_name, _join))


def _send_needed(finish: Finish, averages: bool, view: View, trained: Trained) -> Upload:
    """Send the methods' groups without tensors that must not travel, or that no method needs.

    The first are tensors of the network that clients did not receive; the others are the model's,
    unless `averages`.
    """
    upload = finish(view, trained)
    sums = upload.sums if averages else without_model(upload.sums)
    kept_back = view.params.keys() - {name for group in view.broadcast.values() for name in group}
    if not kept_back:
        return replace(upload, sums=sums)
    return replace(upload, sums=_without(kept_back, sums), rows=_without(kept_back, upload.rows))


def _without(names: Collection[str], groups: Groups) -> Groups:
    """Return groups without some tensors, and none that held only these."""
    left = {name: without(tensors, names) for name, tensors in groups.items()}
    return {name: tensors for name, tensors in left.items() if tensors}


def _owner_of(group: str) -> str:
    """Return the key in `info` of the method that keeps a group."""
    return f"owner of {group}"


def _merged(what: str, parts: Iterable[Mapping[str, V]]) -> dict[str, V]:
    """Return the union of mappings with distinct names."""
    merged: dict[str, V] = {}
    for part in parts:
        if both := merged.keys() & part.keys():
            raise SettingsError(f"{KEY}: two methods each have {min(both)!r} in their {what}")
        merged |= part
    return merged


def check_servers(methods: Methods) -> None:
    """Check that no method's server drops the model of one before it, or takes another's rate."""
    before, rated = "", [name for name, method in methods.items() if method.server_lr is not None]
    if len(rated) > 1:
        raise SettingsError(f"{' and '.join(rated)} each have a learning rate of the server")
    for name, member in methods.items():
        if updates_plainly(member):
            continue
        if before and not sends_model(member):
            if not sends_model(methods[before]):
                raise SettingsError(
                    f"{before} cannot be chained with {name}: neither sends a model for the other"
                    " to continue from"
                )
            raise SettingsError(
                f"{before} cannot stand before {name}, which moves the model before the round"
                f" and would drop the model of {before}; put {name} before {before}"
            )
        before = name


def check_pulls(methods: Methods) -> None:
    """Check that a method which needs the strength of pulls is chained with no other changes.

    Constants leave it, and penalties and a criterion are a part of the objective.
    """
    key_needing = [name for name, member in methods.items() if member.needs_pulls]
    for name, member in methods.items() if key_needing else ():
        unknown = [
            transform.name for transform in member.rules().transforms if transform.pull is None
        ]
        if unknown:
            settings = ", ".join(f"{key}={value}" for key, value in member.model_dump().items())
            raise SettingsError(
                f"{name}{settings and f' ({settings})'} cannot be chained with {key_needing[0]}:"
                f" its transform {unknown[0]!r} states no `pull`; allowed are transforms that add"
                " mu * (w_k - a) and constants to gradients, and state mu"
            )


def check_single(methods: Methods) -> None:
    """Check that no two methods set a part that rules have only once."""
    for part in ("start", "criterion", "from_samples"):
        plain = getattr(Rules(), part)
        owners = [n for n, method in methods.items() if getattr(method.rules(), part) is not plain]
        if len(owners) > 1:
            raise SettingsError(
                f"{owners[0]} and {owners[1]} each set the {part} of local training; methods that"
                " are chained may set one"
            )


def check_local(methods: Methods) -> None:
    """Check that no two methods need a `local` setting at different values."""
    needed: dict[str, tuple[str, object]] = {}
    for name, member in methods.items():
        for key, value in member.needs_local.items():
            other, needed_value = needed.setdefault(key, (name, value))
            if needed_value != value:
                raise SettingsError(
                    f"{other} needs local.{key}={as_typed(needed_value)}, {name} needs"
                    f" local.{key}={as_typed(value)}; leave one of them out"
                )


def check_kept_back(methods: Methods, state: ServerState) -> None:
    """Check that no method needs tensors that another leaves to the clients.

    None sends or keeps groups of them; where none are left, none moves or reads a model.

    Raises:
        SettingsError: one does, such as SCAFFOLD control variates of a head under FedPer.
    """
    model = state.groups[MODEL].keys()
    for name, member in methods.items():
        kept_back = model - member.broadcast(state).get(MODEL, {}).keys()
        for other, other_method in methods.items():
            groups = {
                **without_model(other_method.broadcast(state)),
                **other_method.client_init(state),
            }
            both = [n for tensors in groups.values() for n in kept_back & tensors.keys()]
            if both and other != name:
                raise SettingsError(
                    f"{KEY}: {other} cannot be chained with {name}, which does not send"
                    f" {min(both)}: {other} holds a group of this tensor"
                )
            needs = other_method.compares or not updates_plainly(other_method)
            if needs and MODEL in other_method.broadcast(state) and kept_back == model:
                use = "compare with" if other_method.compares else "move"
                raise SettingsError(
                    f"{KEY}: {other} cannot be chained with {name}, which sends no model:"
                    f" {other} would have none to {use}"
                )


def updates_plainly(member: FedAvg) -> bool:
    """Return whether a method's server takes FedAvg's step."""
    return type(member).server_update is FedAvg.server_update


def sends_model(member: FedAvg) -> bool:
    """Return whether a method's clients send a model, going by its rules and bases."""
    sent = member.bases is None or MODEL in member.bases
    return sent or member.rules().finish is send_model


def without_model(groups: Groups) -> Groups:
    """Return groups without the model."""
    return {name: group for name, group in groups.items() if name != MODEL}
