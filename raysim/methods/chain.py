"""Chain: several methods at once, each with its own settings.

Source: the composition of gradient transformations in DeepMind's Optax (optax.chain), carried over
to the rules of local training and to the server's update. No paper describes it.

    client:  rules of all methods as `raysim.chain` merges them: penalties and transforms in order
    server:  state_i = update_i(state before the round, means with the model of update_(i-1))

`methods` maps a method's name to its settings, in order; {} takes its defaults:

    method.name=chain method.methods.fedprox.mu=0.1 method.methods.scaffold={}

A name with dots, as in package.module:Class, is written in JSON or in a file. Each method must be a
FedAvg that keeps FedAvg's `round`. Groups of the server's state, of the broadcast and of the
clients' state need different names in different methods, but for "model". Tensors that a method
leaves to the clients (FedPer's head) none sends. A method whose clients send no model (FedNova)
moves that before the round: methods before it keep FedAvg's `server_update`, and no other sends the
model. One that sends none at all (`local`) goes with none that moves it or compares with it.
FedBuff, which discounts stale updates, goes only with methods that send and average what FedAvg
does. An empty chain is FedAvg.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import Field, PlainSerializer, PlainValidator, model_validator
from torch import nn

from raysim.core.chain import chain
from raysim.core.columns import Column
from raysim.core.components import build_component
from raysim.core.errors import SettingsError
from raysim.core.method import METHODS, Asynchrony, Metrics, Round, ServerState
from raysim.core.rules import (
    CHANGE,
    Finish,
    Pass,
    Reduced,
    Rules,
    Trained,
    Upload,
    View,
    Weighting,
    send_model,
)
from raysim.core.tensors import Groups, Tensors, without
from raysim.methods.chain_checks import (
    KEY,
    MODEL,
    check_kept_back,
    check_models,
    check_pooled,
    check_pulls,
    check_single,
    sends_model,
    updates_plainly,
    without_model,
)
from raysim.methods.fedavg import BeforePasses, FedAvg

V = TypeVar("V")


def _build(value: Any) -> dict[str, FedAvg]:
    """Return the methods of a mapping from names to settings."""
    if not isinstance(value, Mapping):
        raise SettingsError(f"{KEY}={value!r}: must map names of methods to their settings")
    return {name: _member(str(name), given) for name, given in value.items()}


def _member(name: str, given: Any) -> FedAvg:
    key = f"{KEY}.{name}"
    if not isinstance(given, Mapping | FedAvg):
        raise SettingsError(
            f"{key}={given!r}: must be the method's settings; {{}} for its defaults"
        )
    kind = type(given) if isinstance(given, FedAvg) else _kind(name, key)
    if not issubclass(kind, FedAvg) or kind.round is not FedAvg.round or issubclass(kind, Chain):
        raise SettingsError(f"{key}: cannot be chained: its round is not FedAvg's")
    member = given if isinstance(given, FedAvg) else build_component(kind, given, f"{key}.")
    if member.privacy:
        raise SettingsError(f"{key}: cannot be chained: it claims privacy, which a chain would not")
    if member.selection:
        raise SettingsError(f"{key}: cannot be chained: it brings its own selection of clients")
    return member


def _kind(name: str, key: str) -> type:
    try:
        return METHODS.get(name)
    except SettingsError as error:
        raise SettingsError(f"{key}: {error}") from error


def _written(methods: Mapping[str, FedAvg]) -> dict[str, Any]:
    """Return the settings of the methods as plain values."""
    return {name: member.model_dump(mode="json") for name, member in methods.items()}


class Chain(FedAvg):
    """Several methods at once, for example FedProx and SCAFFOLD under Adam on the server.

    Helps to study how methods combine, without a class for each combination. Costs the sum of its
    methods' costs in time, memory and bytes; the model travels once.
    """

    methods: Annotated[Mapping[str, FedAvg], PlainValidator(_build), PlainSerializer(_written)] = (
        Field(default={}, description="methods in order, by name: their settings")
    )

    @model_validator(mode="after")
    def _rules_chain(self) -> Chain:
        try:
            check_pulls(self.methods)
            check_single(self.methods)
            self.rules()
            if len({member.weighting for member in self.methods.values()} - {None}) > 1:
                raise SettingsError("two methods each set the weighting of the mean")
            for hook in ("deployed", "deployment", "asynchrony", "discount", "before_training"):
                self._only(hook)
            self._check_discount()
            check_models(self.methods)
        except SettingsError as error:
            raise SettingsError(f"{KEY}: {error}") from error
        return self

    @property
    def revision(self) -> int:  # type: ignore[override]  # a constant of other methods
        """Revision that rises with those of its methods."""
        return 1 + sum(member.revision - 1 for member in self.methods.values())

    @property
    def columns(self) -> Sequence[Column]:  # type: ignore[override]  # a constant of other methods
        """The declarations of the methods."""
        return [column for member in self.methods.values() for column in member.columns]

    @property
    def staged(self) -> bool:  # type: ignore[override]  # a constant of other methods
        """True if one of the methods needs the stages of a network."""
        return any(member.staged for member in self.methods.values())

    @property
    def real(self) -> bool:  # type: ignore[override]  # a constant of other methods
        """True if one of the methods needs real parameters."""
        return any(member.real for member in self.methods.values())

    @property
    def needs_sample_losses(self) -> bool:  # type: ignore[override]  # a constant of other methods
        """True if one of the methods needs a mean over samples."""
        return any(member.needs_sample_losses for member in self.methods.values())

    @property
    def needs_classes(self) -> str:
        """The setting of a method that needs a classification, the first if several do."""
        return next((m.needs_classes for m in self.methods.values() if m.needs_classes), "")

    @property
    def reads_beside(self) -> str:  # type: ignore[override]  # a constant of other methods
        """Words for what the methods read, of the first if several do."""
        return next((m.reads_beside for m in self.methods.values() if m.reads_beside), "")

    @property
    def needs_mean(self) -> str:  # type: ignore[override]  # a constant of other methods
        """Words for what clients of the methods send, of the first if several do."""
        return next((m.needs_mean for m in self.methods.values() if m.needs_mean), "")

    @property
    def reads_each(self) -> str:  # type: ignore[override]  # a constant of other methods
        """Words for what the methods read of single clients, of the first if several do."""
        return next((m.reads_each for m in self.methods.values() if m.reads_each), "")

    @property
    def server_lr(self) -> float | None:
        """The rate of the server, of the only method that has one."""
        rates = [m.server_lr for m in self.methods.values() if m.server_lr is not None]
        return rates[0] if len(rates) == 1 else None

    @property
    def weighting(self) -> Weighting | None:  # type: ignore[override]  # a constant of others
        """Weights of the mean, by the method that sets them."""
        return next((m.weighting for m in self.methods.values() if m.weighting), None)

    @property
    def pooled(self) -> bool:  # type: ignore[override]  # a constant of other methods
        """True if one of the methods trains in one place."""
        return any(member.pooled for member in self.methods.values())

    @property
    def deploys_finetuned(self) -> bool:  # type: ignore[override]  # a constant of other methods
        """True if clients of one of the methods deploy fine-tuned models."""
        return any(member.deploys_finetuned for member in self.methods.values())

    @property
    def needs_local(self) -> Mapping[str, object]:
        """The settings that the methods need."""
        needed = [member.needs_local for member in self.methods.values()]
        return {name: value for each in needed for name, value in each.items()}

    def needing(self, name: str) -> str:
        """Return the key of the method that needs a `local` setting, the last if several do."""
        return [f"{KEY}.{n}" for n, member in self.methods.items() if name in member.needs_local][
            -1
        ]

    def notes(self, network: nn.Module) -> Sequence[str]:
        """Return the lines of all methods."""
        return [line for each in self.methods.values() for line in each.notes(network)]

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
        own = {name: without_model(state.groups) for name, state in states.items()}
        owners = {_owner_of(group): name for name, groups in own.items() for group in groups}
        groups = _merged("server state", own.values())
        info = _merged("server state", [owners, *(state.info for state in states.values())])
        state = ServerState({**super().init(network).groups, **groups}, info)
        self.broadcast(state)  # refuses names that two of them use
        self.client_init(state)
        check_kept_back(self.methods, state)
        check_pooled(self.methods, state)
        return state

    def client_init(self, state: ServerState) -> Groups:
        """Merge the client states of all methods."""
        return _merged("client state", [m.client_init(state) for m in self.methods.values()])

    def client_bytes(self, state: ServerState) -> int:
        """Return the bytes that a client keeps for all methods."""
        return sum(member.client_bytes(state) for member in self.methods.values())

    def broadcast(self, state: ServerState) -> Groups:
        """Merge the methods' broadcasts; the model is sent once, but for what one keeps back."""
        given = [member.broadcast(state) for member in self.methods.values()]
        model = super().broadcast(state)[MODEL]
        sent = {n: t for n, t in model.items() if all(n in each.get(MODEL, {}) for each in given)}
        others = _merged("broadcast", map(without_model, given))
        return {**({MODEL: sent} if sent else {}), **others}

    def before_training(self, now: Round, state: ServerState) -> BeforePasses:
        """Yield the passes before the training, by the method that has some."""
        member = self._only("before_training")
        return (yield from member.before_training(now, state)) if member else state

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return one pass for all methods, with their changes of FedAvg's."""
        plain = replace(super().training_pass(now, state), weighting=None, pooled=False)
        passes = [member.training_pass(now, state) for member in self.methods.values()]
        changes: dict[str, Any] = {}
        for part in fields(Pass):
            if part.name not in ("broadcast", "rules", "bases"):
                default = getattr(plain, part.name)
                values = [getattr(work, part.name) for work in passes]
                changed = [value for value in values if value != default]
                if any(value != changed[0] for value in changed):
                    raise SettingsError(f"{KEY}: two methods each set the pass's {part.name}")
                changes[part.name] = changed[0] if changed else default
        bases = {
            group: base for work in (plain, *passes) for group, base in work.moved_from.items()
        }
        known = {*plain.broadcast, CHANGE}
        bases = {group: base for group, base in bases.items() if base in known}
        averages = all(map(sends_model, self.methods.values()))
        finish = partial(_send_needed, plain.rules.finish, averages)
        return replace(plain, rules=replace(plain.rules, finish=finish), bases=bases, **changes)

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Update the state by each method in turn, from the model of the method before.

        A method sees the state before the round, and no means of others' groups.
        """
        if not self.methods:
            return super().server_update(now, state, reduced)
        model: Tensors = {**state.groups[MODEL], **reduced.means.get(MODEL, {})}
        groups, info = {**state.groups}, {**state.info}
        for name, member in self.methods.items():
            others = {g for g in groups if g != MODEL and state.info[_owner_of(g)] != name}
            means = {g: mean for g, mean in reduced.means.items() if g not in others}
            given = replace(reduced, means={**means, MODEL: model})
            after = member.server_update(self._as_of(member, now), state, given)
            groups |= {g: after.groups[g] for g in groups if g not in others}
            info |= after.info
            model = groups[MODEL]
        return ServerState(groups, info)

    def _as_of(self, member: FedAvg, now: Round) -> Round:
        """Return the round with a method's own rate of the server, where several have one."""
        if self.server_lr is not None or member.server_lr is None:
            return now
        return replace(now, server_lr=member.server_lr)

    def metrics(self, state: ServerState) -> Metrics:
        """Merge the methods' own metrics."""
        return _merged("metrics", [member.metrics(state) for member in self.methods.values()])

    def asynchrony(self, size: int) -> Asynchrony | None:
        """Return the overlap of rounds, by the method that sets it."""
        member = self._only("asynchrony")
        return member.asynchrony(size) if member else None

    def discount(self, staleness: int) -> float:
        """Return the factor of a stale update, by the method that sets it."""
        member = self._only("discount")
        return member.discount(staleness) if member else 1.0

    def deployed(self, state: ServerState) -> Tensors:
        """Return the deployed tensors, by the method that sets them."""
        member = self._only("deployed")
        return member.deployed(state) if member else super().deployed(state)

    @property
    def deploys_client_models(self) -> bool:
        """True if one of the methods gives clients a model of their own."""
        return self._only("deployment") is not None

    def deployment(self, now: Round, state: ServerState) -> Pass | None:
        """Return the pass of the method that gives clients a model of their own."""
        member = self._only("deployment")
        return member.deployment(now, state) if member else None

    def _check_discount(self) -> None:
        """Check that a method discounts only its own upload.

        The factor of a stale update multiplies all groups that a client sends, and no weight.
        """
        owner = self._only("discount")
        for name, member in self.methods.items() if owner else ():
            plain = updates_plainly(member) and member.rules().finish is send_model
            if member is not owner and not plain:
                (first,) = (n for n, m in self.methods.items() if m is owner)
                raise SettingsError(
                    f"{name} cannot be chained with {first}, which discounts stale updates: allowed"
                    " are methods whose clients send the model and keep nothing, and whose server"
                    " takes its mean"
                )

    def _only(self, hook: str) -> FedAvg | None:
        """Return the only method that overrides a hook, or None."""
        plain = getattr(FedAvg, hook)
        owners = {n: m for n, m in self.methods.items() if getattr(type(m), hook) is not plain}
        if len(owners) > 1:
            raise SettingsError(f"{' and '.join(owners)} each have a {hook} of their own")
        return next(iter(owners.values()), None)


def _send_needed(finish: Finish, averages: bool, view: View, trained: Trained) -> Upload:
    """Send what the methods' clients do, but for what must not travel or nobody needs.

    That is what clients were not sent of the network, and the model, unless `averages`.
    """
    upload = finish(view, trained)
    sums = upload.sums if averages else without_model(upload.sums)
    own = view.params.keys() - {name for group in view.broadcast.values() for name in group}
    if not own:
        return replace(upload, sums=sums)
    return replace(upload, sums=_without(own, sums), rows=_without(own, upload.rows))


def _without(own: Collection[str], groups: Groups) -> Groups:
    """Return groups without some tensors, and none that held only these."""
    left = {name: without(tensors, own) for name, tensors in groups.items()}
    return {name: tensors for name, tensors in left.items() if tensors}


def _owner_of(group: str) -> str:
    """Return the key in `info` of the method that keeps a group."""
    return f"owner of {group}"


def _merged(what: str, parts: Iterable[Mapping[str, V]]) -> dict[str, V]:
    """Return the union of mappings whose names are distinct."""
    merged: dict[str, V] = {}
    for part in parts:
        if both := merged.keys() & part.keys():
            raise SettingsError(f"{KEY}: two methods each have {min(both)!r} in their {what}")
        merged |= part
    return merged
