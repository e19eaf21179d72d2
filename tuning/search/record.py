"""Record of a study in its storage, so that every call continues the same search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna

from raysim.config import parse
from raysim.core.errors import SettingsError
from raysim.core.given import canonical
from raysim.storage.schema import renamed
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.studies.space import Space
from raysim.tuning.studies.study import ResolvedStudy

ADDED = {"seeds": [1, "mean"], "constraints": {}, "stack": 1}
"""Keys that earlier versions did not record, and what their studies had."""
UNCOMPARED = {"engine", "out"}
"""Settings in which the calls of one study may differ."""


def record_of(resolved: ResolvedStudy, options: SearchOptions) -> dict[str, Any]:
    """Return all that the trials of a study depend on, as JSON can hold it."""
    given = options.sampler_options
    return {
        "settings": resolved.settings.model_dump(mode="json", exclude=UNCOMPARED),
        "space": _space_to_json(resolved.space),
        "sampler": {"name": options.sampler, **given} if given else options.sampler,
        "objectives": list(options.objectives),
        "first": [dict(trial) for trial in resolved.first],
        "seeds": [options.seeds, options.over_seeds],
        "constraints": dict(options.constraints),
        "stack": options.stack,
    }


def as_of_today(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a study, which an earlier version may have written, as of today."""
    current = {**ADDED, **found}
    if isinstance(settings := found.get("settings"), Mapping):
        current["settings"] = _current(settings)
    return current


def difference_in(key: str, found: Any, expected: Any) -> str | None:
    """Return the first difference under a key of two records in words, or None."""
    if key == "settings" and isinstance(found, Mapping):
        found, expected = canonical(found), canonical(expected)
    return first_difference(found, expected)


def first_difference(found: Any, expected: Any, prefix: str = "") -> str | None:
    """Return the first difference of two records in words, or None."""
    if found == expected:
        return None
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for key in {**found, **expected}:
            if found.get(key) != expected.get(key):
                return first_difference(found.get(key), expected.get(key), f"{prefix}{key}.")
    return f"{prefix.rstrip('.')}: {found}, here {expected}".removeprefix(": ")


def _space_to_json(space: Space) -> dict[str, Any]:
    found: dict[str, Any] = {
        key: optuna.distributions.distribution_to_json(space[key]) for key in space
    }
    for key, conditions in space.conditions.items():
        when = {parent: list(values) for parent, values in conditions.items()}
        found[key] = {"range": found[key], "when": when}
    return found


def _current(settings: Mapping[str, Any]) -> dict[str, Any]:
    current = renamed(settings)
    try:
        return parse(current).model_dump(mode="json", exclude=UNCOMPARED)
    except SettingsError:  # the caller names the difference
        return current
