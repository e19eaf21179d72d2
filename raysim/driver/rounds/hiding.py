"""Withholding of values that a run's stages hide, or that a claim of privacy covers."""

from __future__ import annotations

from typing import TypeVar

from raysim.api.channel import Stage
from raysim.api.components import Component, call, called
from raysim.api.method import Method
from raysim.api.withheld import SINGLE, TIMES, Tells, withheld
from raysim.config import Settings

V = TypeVar("V")


def claiming_of(settings: Settings) -> list[Method | Stage]:
    """Return the method and the stages that claim privacy, in order.

    Raises:
        SettingsError: a claim does not hold.
    """
    parts: list[Method | Stage] = [settings.method, *settings.stages.values()]
    return [part for part in parts if part.privacy]


def as_seen(settings: Settings, reader: Component, view: V) -> V:
    """Return a view as a component sees it, without the values that the run withholds.

    A claim withholds nothing from its own component, because it accounts for what that reads.

    Args:
        settings: The run's settings.
        reader: The component.
        view: The view that the engine hands to the component.
    """
    claims = [part for part in claiming_of(settings) if part is not reader][:1]
    closing = {tells: called(part) for part in claims for tells in Tells}
    closing |= {
        tells: called(stage)
        for stage in settings.stages.values()
        for tells in call(stage, Stage.hides)
    }
    if SINGLE in closing and not settings.clock.has_time:  # times then follow from sizes
        closing[TIMES] = closing[SINGLE]
    return withheld(view, closing, reader)
