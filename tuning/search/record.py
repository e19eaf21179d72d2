"""Record of a study in its storage, so that every call continues the same search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna

from raysim.config import parse
from raysim.core.errors import SettingsError
from raysim.core.user_input import canonical
from raysim.storage.schema import renamed
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.studies.space import Space
from raysim.tuning.studies.study import ResolvedStudy

ADDED = {"seeds": [1, "mean"], "constraints": {}}
"""Keys that earlier versions did not record, with the values of their studies."""
UNCOMPARED = {"engine", "out"}
"""Settings that may differ between the calls of one study."""


def record_of(resolved: ResolvedStudy, options: SearchOptions) -> dict[str, Any]:
    """Return the settings and options that decide the trials of a study, as JSON values."""
    given = options.sampler_options
    skipped = {"coordinates": [*options.coordinates]} if options.coordinates else {}
    return {
        **skipped,
        "settings": resolved.settings.model_dump(mode="json", exclude=UNCOMPARED),
        "space": _space_to_json(resolved.space),
        "sampler": {"name": options.sampler, **given} if given else options.sampler,
        "objectives": list(options.objectives),
        "first": [dict(trial) for trial in resolved.first],
        "seeds": [options.seeds, options.over_seeds],
        "constraints": dict(options.constraints),
    }


def as_of_today(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record, possibly of an earlier version, in the form of the present version."""
    current = {**ADDED, **record}
    if isinstance(settings := record.get("settings"), Mapping):
        current["settings"] = _current(settings)
    return current


def difference_in(key: str, recorded: Any, expected: Any) -> str | None:
    """Return the first difference under a key of two records in words, or None."""
    if key == "settings" and isinstance(recorded, Mapping):
        recorded, expected = canonical(recorded), canonical(expected)
    return first_difference(recorded, expected)


def first_difference(recorded: Any, expected: Any, prefix: str = "") -> str | None:
    """Return the first difference of two records in words, or None."""
    if recorded == expected:
        return None
    if isinstance(recorded, Mapping) and isinstance(expected, Mapping):
        for key in {**recorded, **expected}:
            if recorded.get(key) != expected.get(key):
                return first_difference(recorded.get(key), expected.get(key), f"{prefix}{key}.")
    return f"{prefix.rstrip('.')}: {recorded}, here {expected}".removeprefix(": ")


def _space_to_json(space: Space) -> dict[str, Any]:
    ranges: dict[str, Any] = {
        key: optuna.distributions.distribution_to_json(space[key]) for key in space
    }
    for key, conditions in space.conditions.items():
        when = {parent: list(values) for parent, values in conditions.items()}
        ranges[key] = {"range": ranges[key], "when": when}
    return ranges


def _current(settings: Mapping[str, Any]) -> dict[str, Any]:
    current = renamed(settings)
    try:
        return parse(current).model_dump(mode="json", exclude=UNCOMPARED)
    except SettingsError:  # the caller names the difference
        return current
