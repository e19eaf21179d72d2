"""Ranges of a study: the searched values of one setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from raysim.user_input import override_text

Range = CategoricalDistribution | FloatDistribution | IntDistribution
"""Values that a study searches for one setting."""
GRID_POINTS = 9
"""Grid points of a range of real numbers, evenly spaced on its linear or log scale."""


def suggest_value(trial: Trial, key: str, values: Range) -> Any:
    """Return the value that a trial draws."""
    if isinstance(values, CategoricalDistribution):
        return trial.suggest_categorical(key, values.choices)
    if isinstance(values, IntDistribution):
        return trial.suggest_int(key, values.low, values.high, step=values.step, log=values.log)
    return trial.suggest_float(key, values.low, values.high, step=values.step, log=values.log)


def contains(values: Range, value: Any) -> bool:
    """Return whether a value of a file is in a range."""
    if isinstance(values, CategoricalDistribution):
        return value in values.choices
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and values._contains(value)


def typed(values: Range, value: Any) -> Any:
    """Return a value of a range with the range's type."""
    return values.to_external_repr(values.to_internal_repr(value))


def of_one_type(values: Sequence[Any]) -> list[Any]:
    """Return values unchanged if they have one type, else numbers as floats, and others as text.

    None stays None.
    """
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return list(values)
    kind = float if kinds <= {int, float} else str
    return [value if value is None else kind(value) for value in values]


def limits(values: Range) -> list[Any]:
    """Return the limits of a range, or all choices."""
    if isinstance(values, CategoricalDistribution):
        return list(values.choices)
    return [values.low, values.high]


def grid_points(values: Range) -> Sequence[Any]:
    """Return the grid points of a range: all choices or steps, or GRID_POINTS real numbers."""
    if isinstance(values, CategoricalDistribution):
        return list(values.choices)
    if isinstance(values, IntDistribution):
        return range(values.low, values.high + 1, values.step)
    low, high = values.low, values.high
    if values.step:
        steps = range(round((high - low) / values.step) + 1)
        return [min(low + values.step * i, high) for i in steps]
    fractions = [point / (GRID_POINTS - 1) for point in range(1, GRID_POINTS - 1)]
    if values.log:
        inner = [low * (high / low) ** fraction for fraction in fractions]
    else:
        inner = [low + (high - low) * fraction for fraction in fractions]
    return [low, *inner, high]


def format_range(values: Range) -> str:
    """Return a range as text."""
    if isinstance(values, CategoricalDistribution):
        return alternatives(values.choices)
    log = ", log" if values.log else ""
    step = f", step {values.step:g}" if values.step not in (None, 1) else ""
    return f"{values.low:g} to {values.high:g}{log}{step}"


def alternatives(values: Sequence[Any]) -> str:
    """Return alternative values as text."""
    return " | ".join(map(str, values))


def short_override(key: str, value: Any) -> str:
    """Return a setting as it is typed, a float with four digits."""
    return override_text(key, float(f"{value:.4g}") if isinstance(value, float) else value)
