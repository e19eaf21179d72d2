"""Ranges of a study file: limits or choices, and conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from raysim.api.components import explain
from raysim.errors import SettingsError, visible
from raysim.user_input import dotted, or_none

SCALARS = (bool, int, float, str, type(None))
LARGEST = 2**53
"""Largest limit: up to it numbers and their differences are exact."""
NEVER_SEARCHED = {
    "out": "the study gives it",
    "evaluation.holdout": "a study selects by it",
}


class Entry(BaseModel):
    """Range of a study file: limits or choices, and required values of other settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    choices: list[Any] | None = None
    when: dict[str, Any] = {}

    @property
    def conditions(self) -> dict[str, tuple[Any, ...]]:
        """Values of other settings, any of them, by dotted key."""
        required = dotted(self.when).items()
        return {
            parent: tuple(map(or_none, value if isinstance(value, list) else [value]))
            for parent, value in required
        }


def read_entries(table: Mapping[str, Any]) -> dict[str, Entry]:
    """Return the ranges of a table by dotted key.

    Args:
        table: Ranges by setting, dotted or nested.

    Raises:
        SettingsError: a range is wrong or given twice, or there is none.
    """
    entries: dict[str, Entry] = {}
    for key, value in by_key(table):
        if key in entries:
            raise SettingsError(f"study.space.{key}: is given twice")
        entries[key] = _entry(key, value)
    if not entries:
        raise SettingsError("study.space: must have at least one range")
    return entries


def by_key(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the ranges of a table by dotted key; TOML nests the keys that are not quoted."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value and not value.keys() & {"low", "high", "choices"}:
            yield from by_key(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _entry(key: str, value: Any) -> Entry:
    """Return a range, or a list of choices, as an entry.

    Raises:
        SettingsError: the value is neither, or its limits are wrong.
    """
    name = f"study.space.{key}"
    if key in NEVER_SEARCHED or key.startswith("attack."):
        why = NEVER_SEARCHED.get(key, "the best trial would be the weakest attack")
        raise SettingsError(f"{name}: cannot be searched; {why}")
    if isinstance(value, list | tuple):
        value = {"choices": list(value)}
    if not isinstance(value, Mapping):
        raise SettingsError(
            f"{name}={visible(str(value))}: must be {{low, high}} or a list of choices"
        )
    try:
        entry = Entry.model_validate(value)
    except ValidationError as error:
        raise SettingsError(explain(error, Entry, f"{name}.")) from error
    problem = _wrong_limits(entry) if entry.choices is None else _wrong_choices(entry)
    if problem:
        raise SettingsError(f"{name}{problem}")
    for parent, values in entry.conditions.items():
        if not values:
            raise SettingsError(f"{name}.when.{parent}=[]: must have at least one value")
    return entry


def _wrong_choices(entry: Entry) -> str:
    """Return the error of wrong choices, "" if there is none."""
    choices = entry.choices or []
    if not choices or not all(isinstance(choice, SCALARS) for choice in choices):
        return f"={choices}: must be a list of numbers, words or booleans"
    if any(one == other for one, other in combinations(choices, 2)):
        return f"={choices}: must not have equal values"
    if {"low", "high", "log", "step"} & entry.model_fields_set:
        return ": must have low and high, or choices, not both"
    return ""


def _wrong_limits(entry: Entry) -> str:
    """Return the error of wrong limits, "" if there is none."""
    low, high, step = entry.low, entry.high, entry.step
    if low is None or high is None:
        return f".{'low' if low is None else 'high'}: must be given"
    if far := [limit for limit in (low, high) if abs(limit) > LARGEST]:
        return f": {far[0]}: limits must be from -2**53 to 2**53"
    if low >= high:
        return f".low={low}: must be below high={high}"
    if entry.log and low <= 0:
        return f".low={low}: must be above 0 with log = true"
    return "" if step is None else _wrong_step(step, high - low, entry.log)


def _wrong_step(step: float, width: float, log: bool) -> str:
    if log:
        return f".step={step}: must not be given with log = true"
    if step <= 0 or abs(width / step % 1 - 0.5) < 0.5 - 1e-9:
        return f".step={step}: must be above 0 and divide high - low"
    return ""
