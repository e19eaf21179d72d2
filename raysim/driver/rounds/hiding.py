"""Hiding of a run's values from its components: what its stages hide, or a claim of privacy."""

from __future__ import annotations

from typing import TypeVar

from raysim.api.channel import Stage
from raysim.api.components import Component, call, called
from raysim.api.method import Method
from raysim.api.withheld import SINGLE, TIMES, Tells, withheld
from raysim.config import Settings

V = TypeVar("V")


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
        view: The view that is handed to it.
    """
    claims = [part for part in claiming_of(settings) if part is not reader][:1]
    closing = {tells: called(part) for part in claims for tells in Tells}
    closing |= {
        tells: called(stage)
        for stage in settings.stages.values()
        for tells in call(stage, Stage.hides)
    }
    if SINGLE in closing and not settings.clock.has_time:  # then times are those of sizes
        closing[TIMES] = closing[SINGLE]
    return withheld(view, closing, reader)
