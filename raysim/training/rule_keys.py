"""Keys of rules: equal for rules that do the same, in every pass and process.

A function's key names its code and its settings. Functions without a key (a closure, a lambda, a
method of an object that is no component) may do anything, so their recordings are not reused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from functools import partial
from operator import attrgetter
from types import FunctionType, MethodType
from typing import Any

from raysim.api.components import Component
from raysim.api.rules import Rules, Transform


def key_of_rules(rules: Rules, transforms: Sequence[Transform] = ()) -> Hashable | None:
    """Return the key of the functions that rules and transforms add to a step, or None."""
    keys = [key_of_function(function) for function in functions_of_step(rules, transforms)]
    if any(key is None for key in keys):
        return None
    names = tuple((transform.name, transform.after_momentum) for transform in transforms)
    has_own = (rules.criterion is not None, rules.divisors is not None)
    return (has_own, len(rules.penalties), names, len(rules.companions), *keys)


def functions_of_step(
    rules: Rules, transforms: Sequence[Transform] = ()
) -> list[Callable[..., Any]]:
    """Return the functions that a step calls: before autograd, of transforms, of companions."""
    of_loss = [each for each in (rules.criterion, rules.divisors) if each]
    changes = [transform.update for transform in transforms]
    beside = [companion.gradient for companion in rules.companions]
    return [*of_loss, *rules.penalties, *changes, *beside]


def key_of_function(function: Any) -> Hashable | None:
    """Return the key of a module's function, a component's method, or a partial of these."""
    if isinstance(function, partial):
        inner = key_of_function(function.func)
        names = tuple(sorted(function.keywords))
        arguments = (*function.args, *(function.keywords[name] for name in names))
        keys = [_key_of_argument(argument) for argument in arguments]
        return (inner, names, *keys) if inner and None not in keys else None
    if isinstance(function, MethodType):
        owner, code = function.__self__, function.__func__
        if not isinstance(owner, Component) or owner.__pydantic_private__:
            return None
        path = _path(type(owner))
        settings = json.dumps(owner.model_dump(mode="json"))
        is_method = getattr(type(owner), function.__name__, None) is code
        return (*path, function.__name__, settings) if path and is_method else None
    return _path(function) if isinstance(function, FunctionType) else None


def _path(thing: Any) -> tuple[str, str] | None:
    """Return module and qualified name of a class or function; None if they do not lead to it."""
    try:
        named = attrgetter(thing.__qualname__)(sys.modules[thing.__module__])
    except (AttributeError, KeyError):  # local to a function
        return None
    return (thing.__module__, thing.__qualname__) if named is thing else None


def _key_of_argument(value: Any) -> Hashable | None:
    """Return the key of a partial function's argument: a function, a constant, or several.

    Several are a tuple, a list, a set, a mapping or a dataclass, which may be part of another.
    """
    if isinstance(value, list):
        value = (list, *value)
    elif isinstance(value, Set | Mapping):
        several = value.items() if isinstance(value, Mapping) else value
        value = (type(value).__name__, *sorted(several, key=repr))
    elif is_dataclass(value) and not isinstance(value, type):
        value = (type(value), *(getattr(value, field.name) for field in fields(value)))
    if isinstance(value, tuple):
        keys = [*map(_key_of_argument, value)]
        return None if None in keys else tuple(keys)
    if isinstance(value, type):
        return _path(value)
    if callable(value):
        return key_of_function(value)
    return repr(value) if value is None or type(value) in {bool, int, float, str} else None
