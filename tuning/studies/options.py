"""Options of Optuna's samplers and pruners in a study file: names, types and limits."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from raysim.api.components import suggest
from raysim.errors import SettingsError, visible

LEAST = {
    "max_resource": 1,
    "min_resource": 1,
    "n_ei_candidates": 1,
    "popsize": 4,
    "reduction_factor": 2,
}
"""Least values of numeric options, if not 0."""
DEPRECATED = {"sigma0", "restart_strategy", "inc_popsize"}
"""Options of CMA-ES that Optuna ignores, or will."""
KINDS: Mapping[str, Any] = {
    "int": int,
    "float": (int, float),
    "str": str,
    "bool": bool,
    "None": type(None),
}
"""Types of possible options in a file, by Optuna's annotation."""


def check_options(
    kind: str, name: str, options: Mapping[str, Any], known: type[Any] | None
) -> None:
    """Validate names, types and limits of options, which Optuna does not do for all.

    Args:
        kind: "sampler" or "pruner".
        name: Name of the sampler or pruner.
        options: Values by name.
        known: Optuna's class; None has no options.

    Raises:
        SettingsError: an option is unknown, or has a wrong value.
    """
    allowed = _parameters(known) if known else {}
    for key, value in options.items():
        if key not in allowed:
            hint = suggest(key, sorted(allowed)) if allowed else "it has none"
            raise SettingsError(f"study.{kind}.{visible(key)}: no such option of {name}; {hint}")
        kinds = allowed[key].split(" | ")
        if not any(_is_of(value, each) for each in kinds):
            raise SettingsError(
                f"study.{kind}.{key}={visible(str(value))}: must be {' or '.join(kinds)} with"
                f" {kind}={name}"
            )
        least = LEAST.get(key, 0)
        if _is_of(value, "float") and not least <= value < math.inf:  # also not a number
            finite = " and finite" if "float" in kinds else ""
            raise SettingsError(f"study.{kind}.{key}={value}: must be {least} or more{finite}")


def _is_of(value: Any, kind: str) -> bool:
    return isinstance(value, KINDS[kind]) and (kind == "bool" or not isinstance(value, bool))


def _parameters(kind: type[Any]) -> dict[str, str]:
    """Return the possible options in a file for one of Optuna's classes, with their types."""
    types = {}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        given = parameter.annotation
        annotation = given.strip("'") if isinstance(given, str) else getattr(given, "__name__", "")
        plain = set(annotation.split(" | ")) <= {*KINDS}
        if plain and name not in {"seed", *DEPRECATED} and not name.startswith("warn_"):
            types[name] = annotation
    return types
