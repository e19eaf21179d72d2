"""Chaining the rules of several methods into one set of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from raysim.core.errors import SettingsError
from raysim.core.rules import Rules, Trained, Upload, View, receive_model, send_model
from raysim.core.tensors import Tensors

SHARED = "model"
"""The one group that several rules may send or keep: it holds the same tensors in all of them."""


def chain(*rules: Rules) -> Rules:
    """Merge rules: FedProx's and SCAFFOLD's, say, become those of a client that does both.

    Penalties and transforms are concatenated in order. `start` and `criterion` may come from one of
    the rules alone. Every `finish` that is not FedAvg's is called in turn, and what they give back
    is merged by name.

    Raises:
        SettingsError: two of the rules have a start, a criterion, or a transform of the same name.
    """
    finishes = tuple(each.finish for each in rules if each.finish is not send_model)
    return Rules(
        start=_single("start", [r.start for r in rules if r.start is not receive_model])
        or receive_model,
        criterion=_single("criterion", [r.criterion for r in rules if r.criterion]),
        penalties=tuple(penalty for each in rules for penalty in each.penalties),
        transforms=tuple(transform for each in rules for transform in each.transforms),
        finish=partial(_finish_all, finishes) if len(finishes) > 1 else (*finishes, send_model)[0],
    )


def _single(part: str, functions: Sequence[Any]) -> Any:
    """Return the only function, or None where there is none."""
    if len(functions) > 1:
        names = " and ".join(map(_name, functions[:2]))
        raise SettingsError(f"rules: {names} each set the {part}; rules that chain may set one")
    return functions[0] if functions else None


def _name(function: Any) -> str:
    function = function.func if isinstance(function, partial) else function
    return f"{function.__module__}.{function.__qualname__}"


def _finish_all(
    finishes: Sequence[Callable[[View, Trained], Upload]], view: View, trained: Trained
) -> Upload:
    """Merge what several rules give back."""
    uploads = [finish(view, trained) for finish in finishes]
    merged: dict[str, Any] = {}
    for field in fields(Upload):
        values = [getattr(upload, field.name) for upload in uploads]
        merged[field.name] = _merge(field.name, values)
    return Upload(**merged)


def _merge(field: str, values: Sequence[Any]) -> Any:
    """Return the union of mappings; of other values the only one that is set."""
    if not isinstance(values[0], Mapping):
        return _single(f"upload's {field}", [value for value in values if value is not None])
    merged: dict[str, Any] = {}
    for value in values:
        for name, given in value.items():
            if name in merged and not (name == SHARED and _same_names(merged[name], given)):
                raise SettingsError(
                    f"rules: two that are chained give back {field} {name!r}; names must differ"
                    f" (but for {SHARED!r}, if it holds the same tensors)"
                )
            merged.setdefault(name, given)
    return merged


def _same_names(tensors: Tensors, others: Tensors) -> bool:
    return isinstance(tensors, Mapping) and tensors.keys() == others.keys()
