"""Checks of the numbers of a run's claim of privacy, and notes on its epsilon."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from raysim.api.channel import Stage
from raysim.api.components import called
from raysim.api.method import Method
from raysim.api.privacy import PrivacyClaim
from raysim.driver.privacy.accounting import Accounting, Cohorts, accounting_of
from raysim.driver.rounds.hiding import claiming_of
from raysim.driver.start.parts import RunParts
from raysim.errors import SettingsError


def accounting_for(parts: RunParts, note: Callable[[str], None]) -> Accounting | None:
    """Return the accounting of the claim of the method or of a stage; None without a claim.

    Args:
        parts: The run's parts.
        note: Shows the user one line.

    Raises:
        SettingsError: the accountant does not cover the run, or its first round exceeds the limit.
    """
    settings, claiming = parts.settings, claiming_of(parts.settings)
    if not claiming or not (claim := claiming[0].privacy):
        return None
    clients = len(settings.participants)
    if rule := next(_of_numbers(claim, claim.population or clients, settings.cohort_size), None):
        raise SettingsError(f"{called(claiming[0])}: {rule}")
    key = settings_key(claiming[0])
    draw = settings.selection.draw or "fixed"
    accounting = accounting_of(
        claim, Cohorts(draw, settings.expected_cohort, clients, claim.tree), settings.rounds, key
    )
    _note(accounting, settings.rounds, key, note)
    if settings.start_from is not None:
        note(
            f"privacy: {accounting.column.replace('_', ' ')} covers these rounds alone, not those"
            f" that trained the model of start_from={settings.start_from}"
        )
    return accounting


def settings_key(claiming: Method | Stage) -> str:
    """Return the key of the settings of a method or stage: `method`, `channel.gaussian`."""
    return "method" if isinstance(claiming, Method) else called(claiming)


def _of_numbers(claim: PrivacyClaim, clients: int, size: int) -> Iterator[str]:
    """Yield a line for each number of the claim that exceeds its limit."""
    if claim.tree and claim.tree.length(clients, size) * size > clients:
        yield (
            f"restart={claim.tree.rounds}: must be at most {clients // size}, as each client takes"
            f" part at most once in the rounds of a tree, {size} of {clients} a round"
        )
    if claim.delta > 1 / clients:
        yield f"delta={claim.delta:g}: must be at most 1/K, {1 / clients:g}"


def _note(accounting: Accounting, rounds: int, key: str, note: Callable[[str], None]) -> None:
    """Tell the user the epsilon after the last round, and where the run ends.

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
