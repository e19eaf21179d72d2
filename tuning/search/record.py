"""Record of a study in its storage, so that every call continues the same search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna

from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.studies.space import Space
from raysim.tuning.studies.study import ResolvedStudy
from raysim.user_input import canonical

NOT_THERE = "nothing"
UNCOMPARED = {"engine", "out"}
"""Settings that may differ between the calls of one study."""


def record_of(resolved: ResolvedStudy, options: SearchOptions) -> dict[str, Any]:
    """Return the settings and options that decide the trials of a study, as JSON values."""
    sampler_options = options.sampler_options
    skipped = {"coordinates": [*options.coordinates]} if options.coordinates else {}
    return {
        **skipped,
        "settings": resolved.settings.model_dump(mode="json", exclude=UNCOMPARED),
        "space": _space_to_json(resolved.space),
        "sampler": {"name": options.sampler, **sampler_options}
        if sampler_options
        else options.sampler,
        "objectives": list(options.objectives),
        "first": [dict(trial) for trial in resolved.first],
        "seeds": [options.seeds, options.over_seeds],
        "constraints": dict(options.constraints),
    }


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
            one, other = recorded.get(key, NOT_THERE), expected.get(key, NOT_THERE)
            if one != other:
                return first_difference(one, other, f"{prefix}{key}.")
    return f"{prefix.rstrip('.')}: {recorded}, here {expected}".removeprefix(": ")


def _space_to_json(space: Space) -> dict[str, Any]:
    ranges: dict[str, Any] = {
        key: optuna.distributions.distribution_to_json(space[key]) for key in space
    }
    for key, conditions in space.conditions.items():
        when = {parent: list(values) for parent, values in conditions.items()}
        ranges[key] = {"range": ranges[key], "when": when}
    return ranges
