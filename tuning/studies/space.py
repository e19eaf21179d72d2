"""Search spaces: ranges of settings, which may depend on other settings, and points in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optuna.trial import Trial

from raysim.tuning.studies.ranges import Range, grid_points, suggest_value

Conditions = Mapping[str, tuple[Any, ...]]
"""Allowed values of other settings, by dotted key."""


class Space(Mapping[str, Range]):
    """Ranges by dotted key; a key comes after the keys that it depends on."""

    def __init__(
        self, ranges: Mapping[str, Range], conditions: Mapping[str, Conditions] | None = None
    ) -> None:
        self._ranges, self.conditions = ranges, conditions or {}

    def __getitem__(self, key: str) -> Range:
        return self._ranges[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def is_active(self, key: str, values: Mapping[str, Any]) -> bool:
        """Return whether a setting is searched in a trial with these values."""
        conditions = self.conditions.get(key, {})
        return all(
            parent in values and values[parent] in conditions[parent] for parent in conditions
        )

    def is_complete(self, values: Mapping[str, Any]) -> bool:
        """Return whether values leave nothing to draw."""
        return all(key in values or not self.is_active(key, values) for key in self)

    @property
    def common(self) -> dict[str, Range]:
        """Ranges searched by every trial."""
        return {key: values for key, values in self.items() if key not in self.conditions}

    def draw(self, trial: Trial, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Let a trial draw its searched settings; return all its values.

        Args:
            trial: The trial.
            known: Given values, which are not drawn.
        """
        held, values = known or {}, dict[str, Any]()
        for key in self:
            if self.is_active(key, values):
                values[key] = held[key] if key in held else suggest_value(trial, key, self[key])
        return values

    def points(self) -> list[dict[str, Any]]:
        """Return the points of the grid, values by dotted key."""
        points: list[dict[str, Any]] = [{}]
        for key, values in self.items():
            points = [
                {**point, key: value} if active else point
                for point in points
                for active in [self.is_active(key, point)]
                for value in (grid_points(values) if active else [None])
            ]
        return points

    def completed(
        self, values: Mapping[str, Any], points: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return values, with missing ones from the first fitting point."""
        point = next(
            (candidate for candidate in points if candidate.items() >= values.items()), points[0]
        )
        completed: dict[str, Any] = {}
        for key in self:
            if self.is_active(key, completed) and (key in values or key in point):
                completed[key] = values[key] if key in values else point[key]
        return completed
