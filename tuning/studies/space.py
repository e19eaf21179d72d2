"""Search spaces: ranges of settings, which may depend on other settings, and points in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial
from pydantic import BaseModel, ConfigDict, ValidationError

import raysim
from raysim.core.components import explain, suggest
from raysim.core.errors import SettingsError, visible
from raysim.storage.recorder import dotted
from raysim.tuning.studies.ranges import (
    Range,
    alternatives,
    contains,
    format_range,
    grid_points,
    limits,
    suggest_value,
    typed,
)

Conditions = Mapping[str, tuple[Any, ...]]
"""Values that other settings must have, any of them, by dotted key."""
SCALARS = (bool, int, float, str)


class _Entry(BaseModel):
    """A range as a study file holds it: limits or choices, and conditions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    choices: list[Any] | None = None
    when: dict[str, Any] = {}


class Space(Mapping[str, Range]):
    """Ranges by dotted key; a key stands behind those on which it depends."""

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
        """Return whether a setting is searched in a trial that has these values."""
        conditions = self.conditions.get(key, {})
        return all(
            parent in values and values[parent] in conditions[parent] for parent in conditions
        )

    @property
    def common(self) -> dict[str, Range]:
        """Ranges that every trial searches."""
        return {key: values for key, values in self.items() if key not in self.conditions}

    def draw(self, trial: Trial) -> dict[str, Any]:
        """Let a trial draw the settings that it searches; return all its values."""
        values: dict[str, Any] = {}
        for key in self:
            if self.is_active(key, values):
                values[key] = suggest_value(trial, key, self[key])
        return values

    def points(self) -> list[dict[str, Any]]:
        """Return the points of the grid, values by dotted key."""
        found: list[dict[str, Any]] = [{}]
        for key, values in self.items():
            found = [
                {**point, key: value} if active else point
                for point in found
                for active in [self.is_active(key, point)]
                for value in (grid_points(values) if active else [None])
            ]
        return found


def read_space(
    table: Mapping[str, Any], settings: raysim.Settings, fixed: Mapping[str, Any]
) -> Space:
    """Return the space of a table of ranges.

    Args:
        table: Ranges by setting, dotted or nested.
        settings: Settings of the study, without the searched values.
        fixed: Overrides; these settings are not searched.

    Raises:
        SettingsError: a range or a condition is wrong, the settings reject a value of it, or no
            setting is left to search.
    """
    entries = {key: _entry(key, value) for key, value in _flat(table).items()}
    if not entries:
        raise SettingsError("study.space: must have at least one range")
    searched = {key: entry for key, entry in entries.items() if key not in fixed}
    known = dotted(settings.to_dict())
    ranges: dict[str, Range] = {}
    conditions: dict[str, Conditions] = {}
    for key in _sorted(searched):
        found = _conditions(key, entries[key], ranges, known)
        if found is None:  # never searched with these settings
            continue
        contexts = list(_contexts(key, found, Space(ranges, conditions)))
        ranges[key], conditions[key] = _range(key, entries[key], settings, contexts[0]), found
        for context, value in itertools.product(contexts, limits(ranges[key])):
            settings.override({**context, key: value})
    if not ranges:
        raise SettingsError(f"{', '.join(entries)}: all are fixed; leave at least one to search")
    return Space(ranges, {key: found for key, found in conditions.items() if found})


def read_first(
    trials: Sequence[Mapping[str, Any]], space: Space, fixed: Mapping[str, Any]
) -> tuple[dict[str, Any], ...]:
    """Return the values of the first trials, without those that overrides fix.

    Raises:
        SettingsError: a setting is not searched, or its value is outside its range.
    """
    found = []
    for number, trial in enumerate(trials):
        values = {key: value for key, value in dotted(trial).items() if key not in fixed}
        for key, value in values.items():
            name = f"study.first.{number}.{key}"
            if key not in space:
                raise SettingsError(f"{name}: is not searched; {suggest(key, list(space))}")
            if not contains(space[key], value):
                allowed = format_range(space[key])
                raise SettingsError(f"{name}={visible(str(value))}: must be {allowed}")
            for parent, allowed_values in space.conditions.get(key, {}).items():
                if parent in values and values[parent] not in allowed_values:
                    raise SettingsError(
                        f"{name}={value}: is searched with {parent} ="
                        f" {alternatives(allowed_values)} only, but it is {values[parent]}"
                    )
        if values:
            found.append({key: typed(space[key], value) for key, value in values.items()})
    return tuple(found)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the ranges of a table by dotted key; TOML nests the keys that are not quoted."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, Mapping) and value and not value.keys() & _Entry.model_fields
        found |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def _entry(key: str, value: Any) -> _Entry:
    """Return a range, or a list of choices, as an entry.

    Raises:
        SettingsError: it is neither, or its limits are wrong.
    """
    name = f"study.space.{key}"
    if isinstance(value, list | tuple):
        value = {"choices": list(value)}
    if not isinstance(value, Mapping):
        raise SettingsError(
            f"{name}={visible(str(value))}: must be {{low, high}} or a list of choices"
        )
    try:
        entry = _Entry.model_validate(value)
    except ValidationError as error:
        raise SettingsError(explain(error, _Entry, f"{name}.")) from error
    if entry.choices is not None:
        if not entry.choices or not all(isinstance(choice, SCALARS) for choice in entry.choices):
            raise SettingsError(
                f"{name}={entry.choices}: must be a list of numbers, words or booleans"
            )
        if {"low", "high", "log", "step"} & entry.model_fields_set:
            raise SettingsError(f"{name}: must have low and high, or choices, not both")
    elif problem := _wrong_limits(entry):
        raise SettingsError(f"{name}.{problem}")
    return entry


def _wrong_limits(entry: _Entry) -> str:
    """Return the error of wrong limits, "" if there is none."""
    low, high, step = entry.low, entry.high, entry.step
    if low is None or high is None:
        return f"{'low' if low is None else 'high'}: must be given"
    if low >= high:
        return f"low={low}: must be below high={high}"
    if entry.log and low <= 0:
        return f"low={low}: must be above 0 with log = true"
    if step is not None and entry.log:
        return f"step={step}: must not be given with log = true"
    if step is not None and (step <= 0 or abs((high - low) / step % 1 - 0.5) < 0.5 - 1e-9):
        return f"step={step}: must be above 0 and divide high - low"
    return ""


def _sorted(entries: Mapping[str, _Entry]) -> list[str]:
    """Return the keys, each behind those on which it depends.

    Raises:
        SettingsError: they depend on each other in a circle.
    """
    waiting = {key: {p for p in dotted(e.when) if p in entries} for key, e in entries.items()}
    done: list[str] = []
    while waiting:
        ready = [key for key, parents in waiting.items() if parents <= set(done)]
        if not ready:
            circle = ", ".join(waiting)
            raise SettingsError(f"study.space.{next(iter(waiting))}.when: a circle of {circle}")
        done.append(ready[0])
        del waiting[ready[0]]
    return done


def _conditions(
    key: str, entry: _Entry, ranges: Mapping[str, Range], known: Mapping[str, Any]
) -> Conditions | None:
    """Return the conditions on searched settings, None if a fixed one does not hold.

    Raises:
        SettingsError: a condition is on an unknown setting, or never holds.
    """
    found = {}
    for parent, value in dotted(entry.when).items():
        name = f"study.space.{key}.when.{parent}"
        values = tuple(value) if isinstance(value, list) else (value,)
        if parent in ranges:
            for each in values:
                if not contains(ranges[parent], each):
                    raise SettingsError(f"{name}={each}: must be {format_range(ranges[parent])}")
            found[parent] = values
        elif parent not in known:
            raise SettingsError(f"{name}: no such setting; {suggest(parent, sorted(known))}")
        elif known[parent] not in values:
            return None
    return found


def _contexts(key: str, conditions: Conditions, space: Space) -> Iterator[dict[str, Any]]:
    """Yield values of searched settings with which a setting may be drawn.

    They are those of its conditions and, of a component's field, the component's names.
    """
    name = f"{key.partition('.')[0]}.name"
    parents = dict(conditions)
    if name in space and name not in parents and name != key:
        parents[name] = tuple(limits(space[name]))
    for values in itertools.product(*parents.values()):
        point = dict(zip(parents, values, strict=True))
        above = [list(_contexts(p, space.conditions.get(p, {}), space)) for p in parents]
        for contexts in itertools.product(*above):
            merged: dict[str, Any] = {}
            for context in (*contexts, point):
                merged |= context
            yield merged


def _range(key: str, entry: _Entry, settings: raysim.Settings, context: Mapping[str, Any]) -> Range:
    """Return the range of an entry, of integers where the setting is an integer."""
    if entry.choices is not None:
        return CategoricalDistribution([None if c == "none" else c for c in entry.choices])
    low, high = entry.low or 0, entry.high or 0
    is_real = any(
        isinstance(dotted(settings.override({**context, key: end}).to_dict())[key], float)
        for end in (low, high)
    )
    if is_real:
        return FloatDistribution(low, high, log=entry.log, step=entry.step)
    step = entry.step or 1
    if not isinstance(step, int):
        raise SettingsError(f"study.space.{key}.step={step}: must be an integer")
    return IntDistribution(int(low), int(high), log=entry.log, step=step)
