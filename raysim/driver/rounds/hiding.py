"""Hiding of a run's values from its components: what masks or a claim of privacy keep secret."""

from __future__ import annotations

from typing import TypeVar

from raysim.api.channel import Stage
from raysim.api.components import Component, called
from raysim.api.method import Method
from raysim.api.withheld import MASKS, PRIVACY, UNTIMED_MASKS, withheld
from raysim.config import Settings

V = TypeVar("V")


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


def as_seen(settings: Settings, reader: Component, view: V) -> V:
    """Return a view as the run's component sees it: without what the run withholds.

    A claim withholds nothing from the component that makes it, and accounts what that reads.

    Args:
        settings: The run's settings.
        reader: The component.
        view: What is handed to it.
    """
    masks = masking_of(settings)
    claims = [part for part in claiming_of(settings) if part is not reader]
    untimed = masks if not settings.clock.has_time else None
    closing = {MASKS: masks, UNTIMED_MASKS: untimed, PRIVACY: next(iter(claims), None)}
    return withheld(view, {by: called(part) for by, part in closing.items() if part}, reader)
