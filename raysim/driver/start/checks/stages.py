"""Check of rounds without clients, which stages of the channel may act on."""

from __future__ import annotations

from raysim.api.components import called
from raysim.driver.listeners.listener import Listener
from raysim.driver.rounds.method_rounds import (
    passes_of,
    round_inputs,
    run_round,
    run_without_clients,
)
from raysim.driver.start.parts import RunParts
from raysim.errors import RaysimError, SettingsError


def check_rounds_without_clients(parts: RunParts) -> None:
    """Check that a method's round runs without clients, if a stage acts on such rounds.

    A round is without clients if none is selected, or if all drop out.

    Args:
        parts: The run's parts.

    Raises:
        SettingsError: the round fails, or has passes over clients that were not selected.
    """
    settings, initial = parts.settings, parts.initial
    acting = [stage for stage in settings.stages.values() if stage.acts_on_empty_rounds]
    may_be_empty, may_be_lost = settings.selection.may_be_empty, settings.clock.has_time
    if not acting or not (may_be_empty or may_be_lost):
        return
    note = Listener().note
    given = (settings, parts.network, initial)
    now = round_inputs(*given, sizes=parts.sizes, note=note, cohort=())
    passes = passes_of(settings, now, initial.state)
    try:
        for _ in run_round(passes, run_without_clients):
            pass
    except RaysimError as error:
        others = ["selection.name=uniform"] * may_be_empty + ["clock.name=none"] * may_be_lost
        raise SettingsError(
            f"{called(acting[0])}: acts on rounds without clients, and"
            f" {called(settings.method)} fails in them: {error}; choose {' '.join(others)}"
        ) from error
