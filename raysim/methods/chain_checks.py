"""Checks of methods that are chained: which of them go together, and in which order."""

from __future__ import annotations

from collections.abc import Mapping

from raysim.core.errors import SettingsError
from raysim.core.method import ServerState
from raysim.core.rules import Rules, send_model
from raysim.core.tensors import Groups
from raysim.methods.fedavg import FedAvg

KEY = "method.methods"
MODEL = "model"
Methods = Mapping[str, FedAvg]
"""Chained methods in order, by name."""


def check_pulls(methods: Methods) -> None:
    """Check that a method which needs the strength of pulls is chained with no other changes.

    Constants leave it, and penalties and a criterion are a part of the objective.
    """
    needing = [name for name, member in methods.items() if member.needs_pulls]
    for name, member in methods.items() if needing else ():
        unknown = [each.name for each in member.rules().transforms if each.pull is None]
        if unknown:
            own = ", ".join(f"{key}={value}" for key, value in member.model_dump().items())
            raise SettingsError(
                f"{name}{own and f' ({own})'} cannot be chained with {needing[0]}: its"
                f" transform {unknown[0]!r} states no `pull`; allowed are transforms that add"
                " mu * (w_k - a) and constants to gradients, and state mu"
            )


def check_single(methods: Methods) -> None:
    """Check that no two methods set a part of the rules of which there is one."""
    for part in ("start", "criterion", "from_samples"):
        plain = getattr(Rules(), part)
        owners = [n for n, each in methods.items() if getattr(each.rules(), part) is not plain]
        if len(owners) > 1:
            raise SettingsError(
                f"{owners[0]} and {owners[1]} each set the {part} of local training; methods that"
                " are chained may set one"
            )


def check_models(methods: Methods) -> None:
    """Check that no method drops the model of one before it.

    A method whose clients send no model cannot start from the mean that it is given.
    """
    before = ""
    for name, member in methods.items():
        if before and not sends_model(member):
            if not sends_model(methods[before]):
                raise SettingsError(
                    f"{before} cannot be chained with {name}: neither sends a model, from which the"
                    " other could go on"
                )
            raise SettingsError(
                f"{before} cannot stand before {name}, which moves the model before the round"
                f" and would drop what {before} makes of it; put {name} before {before}"
            )
        if not updates_plainly(member):
            before = name


def check_kept_back(methods: Methods, state: ServerState) -> None:
    """Check that no method needs tensors that another leaves to the clients.

    None sends or keeps groups of them; where none are left, none moves or reads a model.

    Raises:
        SettingsError: one does, such as SCAFFOLD control variates of a head under FedPer.
    """
    model = state.groups[MODEL].keys()
    for name, member in methods.items():
        kept_back = model - member.broadcast(state).get(MODEL, {}).keys()
        for other, each in methods.items():
            groups = {**without_model(each.broadcast(state)), **each.client_init(state)}
            both = [n for tensors in groups.values() for n in kept_back & tensors.keys()]
            if both and other != name:
                raise SettingsError(
                    f"{KEY}: {other} cannot be chained with {name}, which does not send"
                    f" {min(both)}: {other} holds a group of this tensor"
                )
            needs = each.compares or not updates_plainly(each)
            if needs and MODEL in each.broadcast(state) and kept_back == model:
                use = "compare with" if each.compares else "move"
                raise SettingsError(
                    f"{KEY}: {other} cannot be chained with {name}, which sends no model:"
                    f" {other} would have none to {use}"
                )


def check_pooled(methods: Methods, state: ServerState) -> None:
    """Check that in one place, without clients, no method has clients send or keep groups.

    Raises:
        SettingsError: one does, such as FedNova, SCAFFOLD or APFL.
    """
    places = [name for name, member in methods.items() if member.pooled]
    for name, member in methods.items() if places else ():
        sent = {**member.broadcast(state), **(member.bases or {})}
        kept = member.client_init(state) if member.client_bytes(state) else {}
        groups = {*sent, *kept} - {MODEL}
        if groups:
            raise SettingsError(
                f"{KEY}: {name} cannot be chained with {places[0]}, which has no clients:"
                f" those of {name} send or keep {min(groups)!r}"
            )


def updates_plainly(member: FedAvg) -> bool:
    """Return whether a method's server does what FedAvg's does."""
    return type(member).server_update is FedAvg.server_update


def sends_model(member: FedAvg) -> bool:
    """Return whether a method's clients send a model, going by its rules and bases."""
    sent = member.bases is None or MODEL in member.bases
    return sent or member.rules().finish is send_model


def without_model(groups: Groups) -> Groups:
    """Return groups but for the model."""
    return {name: group for name, group in groups.items() if name != MODEL}
