"""What a study is: a preset, the settings that it tries, and the ranges of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import raysim
from raysim.core.errors import SettingsError

Range = CategoricalDistribution | FloatDistribution | IntDistribution
"""What is tried of a setting."""
HOLDOUT = 0.1
"""Share of each client's samples by which a study chooses, where nothing else is said."""
GRID_POINTS = 9
"""Points of a range of real numbers in a grid, evenly spaced on its own scale."""


@dataclass(frozen=True)
class Study:
    """A named search.

    Attributes:
        about: What it is, in one line.
        preset: The preset that it starts from.
        space: What is tried, by dotted key of the settings.
        settings: What it changes in the preset, by dotted key.
    """

    about: str
    preset: str
    space: Mapping[str, Range]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def resolve(self, overrides: Mapping[str, Any]) -> Resolved:
        """Return the settings of its trials and what is tried; an override fixes what was tried.

        Raises:
            SettingsError: an override is wrong, everything tried is fixed, the settings leave no
                samples to choose by, or part of a range is refused.
        """
        base = {"evaluation.holdout": HOLDOUT, "target_accuracy": None}
        settings = raysim.load_config(self.preset, base | dict(self.settings) | dict(overrides))
        space = {key: values for key, values in self.space.items() if key not in overrides}
        if not space:
            raise SettingsError(f"{', '.join(self.space)}: all are fixed; nothing is left to try")
        if not settings.evaluation.holdout:
            raise SettingsError(
                "evaluation.holdout=0.0: a study chooses by held-out samples; it must be above 0"
            )
        if "accuracy" not in settings.dataset.objective.metrics:
            name = settings.dataset.title
            raise SettingsError(f"dataset.name={name}: has no accuracy, by which a study chooses")
        if settings.out is not None:
            raise SettingsError(f"out={settings.out}: a study says it as --out")
        for key, values in space.items():
            for value in ends(values):
                settings.override({key: value})
        return Resolved(settings, space)


@dataclass(frozen=True)
class Resolved:
    """A study with its overrides: the settings of a trial but for what is tried, and that."""

    settings: raysim.Settings
    space: Mapping[str, Range]


def ends(values: Range) -> list[Any]:
    """Return the ends of a range, or all choices."""
    if isinstance(values, CategoricalDistribution):
        return list(values.choices)
    return [values.low, values.high]


def grid(values: Range) -> list[Any]:
    """Return the points of a grid: all choices or whole numbers, GRID_POINTS real ones."""
    if isinstance(values, CategoricalDistribution):
        return list(values.choices)
    if isinstance(values, IntDistribution):
        return list(range(values.low, values.high + 1, values.step))
    low, high = values.low, values.high
    parts = [point / (GRID_POINTS - 1) for point in range(GRID_POINTS)]
    if values.log:
        inner = [low * (high / low) ** part for part in parts[1:-1]]
    else:
        inner = [low + (high - low) * part for part in parts[1:-1]]
    return [low, *inner, high]


def text_of(values: Range) -> str:
    """Return a range as it is shown."""
    if isinstance(values, CategoricalDistribution):
        return " | ".join(map(str, values.choices))
    return f"{values.low:g} to {values.high:g}{', log' if values.log else ''}"
