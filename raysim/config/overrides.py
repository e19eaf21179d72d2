"""Overrides: `dotted.key=value` as it is typed, and plain nested values that they change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysim.errors import SettingsError, visible
from raysim.user_input import RepeatedKeyError, or_none, parse_json


def apply_overrides(raw: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values with dotted keys replaced.

    A component's name is applied before its fields, and a group before its keys; else they are
    applied as they are given, a group where it is first mentioned. So a new name of an ordered
    mapping stands after the names that are there, in the order given. Where a name names another
    component, the fields of the one before are dropped.
    """
    keys = list(overrides)
    scopes = {k: k.removesuffix("name") if k.endswith(".name") else f"{k}." for k in keys}

    def order(key: str) -> tuple[int, int]:
        inside = [k for k in keys if k == key or k.startswith(scopes[key])]
        outside = [k for k in keys if k != key and key.startswith(scopes[k])]
        return keys.index(inside[0]), len(outside)

    result = dict(raw)
    for key in sorted(keys, key=order):
        *groups, last = key.split(".")
        node = result
        for group in groups:
            inner = node.get(group, {})
            if not isinstance(inner, Mapping):
                raise SettingsError(f"{key}: {group} is a value, not a group of settings")
            node[group] = node = dict(inner)  # a copy: the given values stay
        if last == "name" and node.get("name") != overrides[key]:
            node.clear()
        node[last] = overrides[key]
    return result


def parse_override(text: str) -> tuple[str, Any]:
    """Split `dotted.key=value`; parse the value as JSON, `none` as None, else as a string.

    Raises:
        SettingsError: there is no `=`, or a key of the value is given twice.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"{visible(repr(text))}: overrides are written dotted.key=value")
    try:
        return key.strip(), parse_json(value)
    except RepeatedKeyError as error:
        raise SettingsError(f"{visible(text)}: {error}") from error
    except ValueError:  # no JSON, or a number or nesting that no setting has
        return key.strip(), or_none(value.strip())
