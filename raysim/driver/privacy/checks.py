"""Checks of a run's claim of privacy: what no accountant covers is refused before the start.

Each rule is a property that a component states; what methods of one's own do not state is seen in
the first round (`raysim.driver.privacy.uploads`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from raysim.config import BALANCED, Settings
from raysim.core.channel import Stage
from raysim.core.components import Component, called, set_apart, set_on_classes, why_lost
from raysim.core.differences import moving_names
from raysim.core.errors import SettingsError
from raysim.core.method import Method
from raysim.core.privacy import PrivacyClaim
from raysim.core.tensors import frozen_names
from raysim.driver.hiding import claiming_of
from raysim.driver.parts import RunParts
from raysim.driver.privacy.accounting import Accounting, Cohorts, accounting_of
from raysim.storage.run_state import RunState


def accounting_for(parts: RunParts, note: Callable[[str], None]) -> Accounting | None:
    """Return the accounting of the claim that the method or a stage makes; None without one.

    Args:
        parts: The run's parts.
        note: Shows the user one line.

    Raises:
        SettingsError: the accountant does not cover the run, or no round keeps to the claim.
    """
    settings, claiming = parts.settings, claiming_of(parts.settings)
    if not claiming or not (claim := claiming[0].privacy):
        return None
    broken = chain(
        _of_attributes(settings),
        _of_cohorts(settings, claim),
        _of_parts(settings, claiming),
        _of_stages([*settings.stages.values()], claiming[0]),
        _of_clients(settings),
        _of_states(settings, claim, parts.initial),
        _not_clipped(parts),
    )
    if rule := next(broken, None):
        raise SettingsError(f"{called(claiming[0])}: {rule}")
    key = settings_key(claiming[0])
    accounting = accounting_of(claim, _cohorts(settings, claim), settings.rounds, key)
    _note(accounting, settings.rounds, key, note)
    if settings.start_from is not None:
        note(
            f"privacy: {accounting.column.replace('_', ' ')} is of these rounds alone, not of those"
            f" that trained the model of start_from={settings.start_from}"
        )
    return accounting


def settings_key(claiming: Method | Stage) -> str:
    """Return the key of the settings of a method or stage: `method`, `channel.gaussian`."""
    return "method" if isinstance(claiming, Method) else called(claiming)


def _cohorts(settings: Settings, claim: PrivacyClaim) -> Cohorts:
    draw, clients = settings.selection.draw or "fixed", len(settings.participants)
    return Cohorts(draw, settings.expected_cohort, clients, claim.tree)


def _of_attributes(settings: Settings) -> Iterator[str]:
    """Yield the rule that what components do is what their classes say, and their settings."""
    parts: list[Component] = [settings.method, *settings.stages.values()]
    for part in (*parts, settings.selection, settings.aggregation, settings.temperature):
        if names := set_apart(part):
            yield (
                f"{called(part)} has an attribute {names[0]!r} that is no setting, and may change"
                " what the claim rests on; define it in the class"
            )
        if names := set_on_classes(part):
            yield (
                f"{called(part)} has a function {names[0]!r} that was set on its class, and may"
                " change what the claim rests on; define it in a subclass"
            )


def _of_parts(settings: Settings, claiming: Sequence[Method | Stage]) -> Iterator[str]:
    """Yield the rules on components beside the selection that settings break."""
    method = settings.method
    if len(claiming) > 1:
        yield f"claims privacy beside {called(claiming[1])}; one of them may"
    if not settings.aggregation.bounds_share:
        named = "" if settings.aggregation.title == "mean" else "aggregation.name=mean "
        yield (
            f"does not go with {called(settings.aggregation)} so set, which does not divide by the"
            f" expected clients alone; choose {named}aggregation.weighting=fixed"
            f"{why_lost(settings.aggregation, 'bounds_share')}"
        )
    if settings.temperature.follows_clients:
        yield f"does not go with {called(settings.temperature)}: T would follow the clients' data"
    for name, rates in (("local", settings.local), ("server", settings.server)):
        if rates.plateau:
            yield f"does not go with {name}.schedule=plateau: lr would follow the clients' data"
    if method.reads_beside:
        yield (
            f"does not go with {called(method)}, whose server reads of clients"
            f" {method.reads_beside}, which is not accounted"
        )


def _of_stages(stages: Sequence[Stage], own: Method | Stage) -> Iterator[str]:
    """Yield the rules on stages beside what claims privacy that they break."""
    if isinstance(own, Method):  # it clips before all stages, and adds noise behind them
        before, behind = stages, stages
        elsewhere = ("leave it out", "leave it out")
    else:
        place = stages.index(own)
        before, behind = stages[:place], stages[place + 1 :]
        elsewhere = ("put it behind", f"put it before {called(own)}")
    for stage in before:
        if stage.has_server_part():
            yield f"{called(stage)} before it reads the sum without noise; {elsewhere[0]}"
    for after in behind:
        if after.keeps_residual:
            yield f"{called(after)} behind it keeps what is not sent, without a bound; leave it out"
        elif not after.bounds_norm:
            why = why_lost(after, "bounds_norm")
            yield f"{called(after)} behind it may exceed the clip; {elsewhere[1]}{why}"


def _of_clients(settings: Settings) -> Iterator[str]:
    """Yield the rules on what clients send and know that settings break."""
    attack = settings.attack
    if attack.changes_uploads or attack.knows_updates:
        yield (
            f"does not go with {called(attack)}, whose bad clients send what is not clipped; choose"
            " an attack on samples, such as attack.name=label_flip"
        )
    elif attack.acts and attack.per_round is not None:
        yield (
            f"does not go with attack.per_round={attack.per_round}, by which each client of a round"
            " decides which others are bad; choose attack.fraction"
        )
    if settings.local.class_weights == BALANCED:
        yield (
            f"does not go with local.class_weights={BALANCED}, which counts the samples of all"
            " clients; give the weights"
        )


def _of_states(settings: Settings, claim: PrivacyClaim, initial: RunState) -> Iterator[str]:
    """Yield the rule on what clients keep between rounds if settings break it.

    It tells in which rounds they have taken part. Under Poisson selection that says nothing of
    others; in fixed cohorts one client's part was another's absence.
    """
    kept = settings.local.keep or settings.method.client_init(initial.state)
    if settings.selection.draw == "fixed" and claim.population is None and kept:
        what = "local.keep=true" if settings.local.keep else called(settings.method)
        yield (
            f"does not go with {what} in fixed cohorts, as clients keep a state between rounds;"
            " choose selection.name=poisson"
        )


def _of_cohorts(settings: Settings, claim: PrivacyClaim) -> Iterator[str]:
    """Yield the rules on who takes part that settings break."""
    method, selection = settings.method, settings.selection
    if settings.asynchrony:
        yield f"does not go with {called(method)}, whose rounds overlap"
    elif selection.draw not in claim.draws:
        yield (
            f"does not go with {called(selection)}, whose cohorts cannot be accounted; choose"
            f" selection.name=poisson, or uniform for fixed cohorts{why_lost(selection, 'draw')}"
        )
    elif claim.accountant == "pld" and selection.draw != "poisson" and claim.population is None:
        yield (
            f"accountant=pld does not go with {called(selection)}: for fixed cohorts there is only"
            " rdp; choose it, or selection.name=poisson"
        )
    if not settings.clock.server_policy.waits:
        yield (
            f"does not go with clock.policy={settings.clock.server_policy.name}, under which the"
            " clients of a round depend on each other; choose wait"
        )
    clients, size = claim.population or len(settings.participants), settings.cohort_size
    if claim.tree and claim.tree.length(clients, size) * size > clients:
        yield (
            f"restart={claim.tree.rounds}: must be at most {clients // size}, as each client takes"
            f" part at most once in the rounds of a tree, {size} of {clients} a round"
        )
    if claim.delta > 1 / clients:
        yield f"delta={claim.delta:g}: must be at most 1/K, {1 / clients:g}"


def _not_clipped(parts: RunParts) -> Iterator[str]:
    """Yield what clients send in their first pass, going by its bases, that stages pass by."""
    first, frozen = parts.first, frozen_names(parts.network)
    if first is None:
        return
    for base in first.moved_from.values():
        sent = first.broadcast.get(base, {})
        for name in sorted(sent.keys() - {*moving_names(sent, None, frozen), *frozen}):
            yield (
                f"clients send {name!r} in whole numbers, which pass by the clip, as the counter of"
                " BatchNorm does; use a model without them, such as one with GroupNorm"
            )


def _note(accounting: Accounting, rounds: int, key: str, note: Callable[[str], None]) -> None:
    """Tell the user what the run will have spent, and where it ends.

    Raises:
        SettingsError: the first round exceeds the limit.
    """
    last, limit, column = accounting.last_round(rounds), accounting.claim.epsilon, accounting.column
    name = column.replace("_", " ")
    if limit is not None and not last:
        first = accounting.epsilon(1)
        raise SettingsError(
            f"{key}.epsilon={limit:g}: the first round has {name} {first:.4g} ({accounting.kind});"
            f" raise {key}.noise"
        )
    after = f"after {last} round{'s' * (last != 1)}"
    note(f"privacy: {name} {accounting.epsilon(last):.4g} {after} ({accounting})")
    if last < rounds:
        note(
            f"privacy: the run ends {after} of {rounds}: the next would have {name}"
            f" {accounting.epsilon(last + 1):.4g}, more than {key}.epsilon={limit:g}"
            f" ({accounting.kind})"
        )
