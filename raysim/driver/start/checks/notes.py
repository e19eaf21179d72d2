"""Notes on combinations of settings that may have an unexpected effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from raysim.api.components import call, called
from raysim.api.method import Method
from raysim.api.selection import Selection
from raysim.driver.start.parts import RunParts


def notes_on(parts: RunParts) -> Iterator[str]:
    """Yield the notes of method and selection before a run starts.

    Args:
        parts: The run's parts.

    Raises:
        SettingsError: a component fails.
    """
    settings = parts.settings
    yield from _lines(settings.method, call(settings.method, Method.notes, parts.network))
    if type(settings.selection).notes is Selection.notes:
        return
    aggregation = settings.aggregation
    own = aggregation.weights or (parts.first and parts.first.weighting)
    weighting: Any = "uniform" if aggregation.sees_updates else own or settings.weighting
    selection, samples = settings.selection, settings.participants.of(parts.sizes)
    lines = call(selection, Selection.notes, samples, settings.cohort_size, weighting)
    yield from _lines(selection, lines)


def _lines(component: Method | Selection, lines: Sequence[str]) -> Iterator[str]:
    """Yield the notes of a component after the setting that names it."""
    yield from (f"{called(component)}: {line}" for line in lines)
