"""Search spaces and first trials of a study, checked against its settings."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import raysim
from raysim.api.components import suggest
from raysim.errors import SettingsError, visible
from raysim.tuning.studies.entries import Entry
from raysim.tuning.studies.ranges import (
    Range,
    alternatives,
    contains,
    format_range,
    limits,
    typed,
)
from raysim.tuning.studies.space import Conditions, Space
from raysim.user_input import dotted, or_none


def read_space(
    entries: Mapping[str, Entry], settings: raysim.Settings, fixed: Mapping[str, Any]
) -> Space:
    """Return the search space of a study's ranges.

    Args:
        entries: Ranges by dotted key.
        settings: Settings of the study, without the searched values.
        fixed: Overrides; these settings are not searched.

    Raises:
        SettingsError: a range or a condition is wrong, the settings reject a value of it, or no
            setting is left to search.
    """
    searched = {key: entry for key, entry in entries.items() if key not in fixed}
    ranges: dict[str, Range] = {}
    conditions: dict[str, Conditions] = {}
    for key in _sorted(searched):
        conditions_of_key = _conditions(key, entries[key], ranges, settings, searched)
        if conditions_of_key is None:  # never searched with these settings
            continue
        try:
            contexts = list(_contexts(key, conditions_of_key, Space(ranges, conditions)))
            ranges[key], conditions[key] = (
                _range(key, entries[key], settings, contexts[0]),
                conditions_of_key,
            )
            for context, value in itertools.product(contexts, limits(ranges[key])):
                settings.override({**context, key: value})
        except SettingsError as error:
            name = f"{key.partition('.')[0]}.name"
            hint = f"; give its range `when`, a condition on {name}" if name in ranges else ""
            raise SettingsError(f"study.space.{key}: {error}{hint}") from error
    if not ranges:
        left = f"conditions of {', '.join(searched)} do not hold" if searched else "all are fixed"
        raise SettingsError(f"{', '.join(entries)}: leave at least one to search; {left}")
    return Space(ranges, {key: condition for key, condition in conditions.items() if condition})


def read_first(
    trials: Sequence[Mapping[str, Any]],
    space: Space,
    settings: raysim.Settings,
    unsearched: Collection[str],
) -> tuple[dict[str, Any], ...]:
    """Return the values of the first trials.

    Args:
        trials: Values by setting, dotted or nested.
        space: The search space.
        settings: Settings of the study, without the searched values.
        unsearched: Settings that this call does not search although the study does; left out.

    Raises:
        SettingsError: a setting is not searched, its value is outside its range, or the settings
            reject the values.
    """
    first = []
    for number, trial in enumerate(trials):
        name = f"study.first.{number}"
        trial_values = {key: or_none(value) for key, value in dotted(trial).items()}
        values = {key: value for key, value in trial_values.items() if key not in unsearched}
        for key in values:
            if key not in space:
                raise SettingsError(f"{name}.{key}: is not searched; {suggest(key, list(space))}")
        values = _with_parents(name, values, space)
        _check(name, settings, values)
        if values:
            first.append({key: typed(space[key], value) for key, value in values.items()})
    return tuple(first)


def _with_parents(name: str, values: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Return the values of a first trial, with the only possible values of their conditions.

    Raises:
        SettingsError: a value is outside its range, or its conditions do not hold.
    """
    completed: dict[str, Any] = {}
    for key in reversed(list(space)):  # dependent settings first
        if key not in values and key not in completed:
            continue
        value = completed.setdefault(key, values.get(key))
        if not contains(space[key], value):
            allowed = format_range(space[key])
            raise SettingsError(f"{name}.{key}={visible(str(value))}: must be {allowed}")
        for parent, allowed_values in space.conditions.get(key, {}).items():
            needed = f"{parent} = {alternatives(allowed_values)}"
            if parent not in values and len(allowed_values) > 1:
                raise SettingsError(f"{name}.{key}={value}: must be given with {needed}")
            held = completed.setdefault(parent, values.get(parent, allowed_values[0]))
            if held not in allowed_values:
                raise SettingsError(
                    f"{name}.{key}={value}: is searched with {needed} only, but it is {held}"
                )
    return {key: completed[key] for key in space if key in completed}


def _sorted(entries: Mapping[str, Entry]) -> list[str]:
    """Return the keys, each after the keys that it depends on.

    Raises:
        SettingsError: the dependencies form a circle.
    """
    waiting = {
        key: {parent for parent in entry.conditions if parent in entries}
        for key, entry in entries.items()
    }
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
    key: str,
    entry: Entry,
    ranges: Mapping[str, Range],
    settings: raysim.Settings,
    searched: Mapping[str, Entry],
) -> Conditions | None:
    """Return the conditions on searched settings, None if one on another setting does not hold.

    Raises:
        SettingsError: a condition is on an unknown setting, or never holds.
    """
    conditions, known, holds = {}, dotted(settings.to_dict()), True
    for parent, values in entry.conditions.items():
        name = f"study.space.{key}.when.{parent}"
        if parent in ranges:
            if isinstance(ranges[parent], FloatDistribution):
                raise SettingsError(f"{name}: must be a setting with choices, or of integers")
            for value in values:
                if not contains(ranges[parent], value):
                    raise SettingsError(f"{name}={value}: must be {format_range(ranges[parent])}")
            conditions[parent] = values
        elif parent in searched:  # its own conditions do not hold
            holds = False
        elif parent not in known:
            raise SettingsError(f"{name}: no such setting; {suggest(parent, sorted(known))}")
        else:
            for value in values:
                _check(name, settings, {parent: value})
            holds = holds and known[parent] in values
    return conditions if holds else None


def _check(name: str, settings: raysim.Settings, values: Mapping[str, Any]) -> None:
    try:
        settings.override(values)
    except SettingsError as error:
        raise SettingsError(f"{name}: {error}") from error


def _contexts(key: str, conditions: Conditions, space: Space) -> Iterator[dict[str, Any]]:
    """Yield values of other searched settings that allow a setting to be drawn.

    They are the values of its conditions and, for a component's field, the component's names.
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


def _range(key: str, entry: Entry, settings: raysim.Settings, context: Mapping[str, Any]) -> Range:
    """Return the range of an entry, of integers if the setting is an integer."""
    if entry.choices is not None:
        return CategoricalDistribution([or_none(choice) for choice in entry.choices])
    low, high = entry.low or 0, entry.high or 0
    is_real = any(
        isinstance(dotted(settings.override({**context, key: end}).to_dict())[key], float)
        for end in (low, high)
    )
    if is_real:
        return FloatDistribution(low, high, log=entry.log, step=entry.step)
    step = entry.step or 1
    if not isinstance(step, int):
        raise SettingsError(f"step={step}: must be an integer")
    return IntDistribution(int(low), int(high), log=entry.log, step=step)
