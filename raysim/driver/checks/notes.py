"""Notes on settings that go together and may not do what their user expects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raysim.core.components import ask, called
from raysim.core.method import Method
from raysim.core.selection import Selection
from raysim.driver.parts import RunParts


def notes_on(parts: RunParts) -> Iterator[str]:
    """Yield the lines of the method and the selection, before a run starts.

    Args:
        parts: The run's parts.

    Raises:
        SettingsError: a component fails to say them.
    """
    settings = parts.settings
    yield from _lines(settings.method, parts.network)
    if type(settings.selection).notes is Selection.notes:
        return
    aggregation = settings.aggregation
    own = aggregation.weights or (parts.first and parts.first.weighting)
    weighting = "uniform" if aggregation.sees_updates else own or settings.weighting
    samples = settings.participants.of(parts.sizes)
    yield from _lines(settings.selection, samples, settings.cohort_size, weighting)


def _lines(component: Method | Selection, *given: Any) -> Iterator[str]:
    """Yield the notes of a component, each with the setting that names it.

    Raises:
        SettingsError: it fails, or returns something else.
    """
    lines = ask(component, "notes", *given, returns=_are_lines, expected="a sequence of lines")
    yield from (f"{called(component)}: {line}" for line in lines)


def _are_lines(returned: Any) -> bool:
    return not isinstance(returned, str) and all(isinstance(line, str) for line in returned)
