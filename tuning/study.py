"""A study: a preset, and ranges of some of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import raysim
from raysim.core.errors import SettingsError

Range = CategoricalDistribution | FloatDistribution | IntDistribution
"""Values that a study searches for one setting."""
HOLDOUT = 0.1
"""Default of `evaluation.holdout` in a study."""
GRID_POINTS = 9
"""Grid points of a range of real numbers, evenly spaced on its linear or log scale."""


@dataclass(frozen=True)
class Study:
    """A named search over settings.

    Attributes:
        about: Description in one line.
        preset: Preset of the settings that are not searched.
        space: Search space, ranges by dotted key.
        settings: Overrides of the preset by dotted key.
    """

    about: str
    preset: str
    space: Mapping[str, Range]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def resolve(self, overrides: Mapping[str, Any]) -> ResolvedStudy:
        """Return the study with overrides applied; an overridden setting is not searched.

        Raises:
            SettingsError: an override is wrong, no setting is left to search, there is no holdout,
                or the settings reject part of a range.
        """
        base = {"evaluation.holdout": HOLDOUT, "target_accuracy": None}
        settings = raysim.load_config(self.preset, base | dict(self.settings) | dict(overrides))
        space = {key: values for key, values in self.space.items() if key not in overrides}
        if not space:
            raise SettingsError(
                f"{', '.join(self.space)}: all are fixed; leave at least one to search"
            )
        if not settings.evaluation.holdout:
            raise SettingsError(
                "evaluation.holdout=0.0: must be above 0; a study selects by held-out accuracy"
            )
        if "accuracy" not in settings.dataset.scoring.metrics:
            name = settings.dataset.title
            raise SettingsError(f"dataset.name={name}: has no accuracy, by which a study chooses")
        if settings.out is not None:
            raise SettingsError(f"out={settings.out}: use the option --out for a study")
        for key, values in space.items():
            for value in limits(values):
                settings.override({key: value})
        return ResolvedStudy(settings, space)


@dataclass(frozen=True)
class ResolvedStudy:
    """A study with overrides applied.

    Attributes:
        settings: Settings of every trial, without the searched values.
        space: Search space, ranges by dotted key.
    """

    settings: raysim.Settings
    space: Mapping[str, Range]


def limits(values: Range) -> list[Any]:
    """Return the limits of a range, or all choices."""
    if isinstance(values, CategoricalDistribution):
        return list(values.choices)
    return [values.low, values.high]


def grid_points(values: Range) -> list[Any]:
    """Return the grid points of a range: all choices or integers, or GRID_POINTS real numbers."""
    if isinstance(values, CategoricalDistribution):
        return list(values.choices)
    if isinstance(values, IntDistribution):
        return list(range(values.low, values.high + 1, values.step))
    low, high = values.low, values.high
    fractions = [point / (GRID_POINTS - 1) for point in range(1, GRID_POINTS - 1)]
    if values.log:
        inner = [low * (high / low) ** fraction for fraction in fractions]
    else:
        inner = [low + (high - low) * fraction for fraction in fractions]
    return [low, *inner, high]


def format_range(values: Range) -> str:
    """Return a range as text."""
    if isinstance(values, CategoricalDistribution):
        return " | ".join(map(str, values.choices))
    return f"{values.low:g} to {values.high:g}{', log' if values.log else ''}"
