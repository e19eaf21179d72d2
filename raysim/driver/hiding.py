"""Hiding of values from a run's components: those that masks or a claim of privacy keep secret."""

from __future__ import annotations

from typing import Any

from raysim.config import Settings
from raysim.core.channel import Stage
from raysim.core.components import Component, called
from raysim.core.method import Method
from raysim.core.selection import History
from raysim.core.withheld import Withheld


def masking_of(settings: Settings) -> Stage | None:
    """Return the stage that states a secure aggregation, if one does."""
    return next((stage for stage in settings.stages.values() if stage.secure_sum), None)


def claiming_of(settings: Settings) -> list[Method | Stage]:
    """Return what claims privacy: the method, or stages in order; one of them may.

    Raises:
        SettingsError: a claim does not hold.
    """
    parts: list[Method | Stage] = [settings.method, *settings.stages.values()]
    return [part for part in parts if part.privacy]


def hidden(settings: Settings, reader: Component, what: str) -> Any:
    """Return what a component gets in place of a value that the run hides; None if it does not.

    Args:
        settings: The run's settings.
        reader: The component.
        what: What the value tells, in words.
    """
    by = masking_of(settings) or next(iter(claiming_of(settings)), None)
    return None if by is None else _withheld(by, reader, what)


def hidden_clients(settings: Settings, reader: Component) -> Any:
    """Return what a component gets in place of a round's clients, and of their steps.

    Under a claim of privacy that is another's, their number, too, tells of each. None if the run
    does not hide them.

    Args:
        settings: The run's settings.
        reader: The component.
    """
    by = next(iter(claiming_of(settings)), None)
    return None if by is None or by is reader else _withheld(by, reader, CLIENTS)


def _withheld(by: Component, reader: Component, what: str) -> Withheld:
    return Withheld(f"{called(by)}: does not go with {called(reader)}, which reads {what}")


LOSSES, SIZES = "the losses of single clients", "the sizes of clients"
COHORT = "pass now.cohort on unchanged"
CLIENTS = f"the clients of a round, or their steps; {COHORT}"


def without_losses(settings: Settings, reader: Component, history: History) -> History:
    """Return a history as a component may see it; arguments as of `hidden`."""
    losses = hidden(settings, reader, LOSSES)
    return history if losses is None else History(losses, history.last_round, history.times)
