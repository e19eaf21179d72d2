"""Chaining the rules of several methods into one set of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from raysim.api.rules import Finish, Rules, Trained, Upload, View, receive_model, send_model
from raysim.errors import SettingsError
from raysim.numbers.tensors import Tensors, nbytes

OF_STAGES = ("samples", "encoding")
"""Parts of an upload that the engine sets, for the stages of the channel."""
SHARED = "model"
"""Group that several rules may send or keep, if it holds the same tensors in all of them."""
Join = Callable[[Sequence[Any]], Any]
"""Returns a chain's statement, given FedAvg's and then each of its methods'."""


def first(stated: Sequence[Any]) -> Any:
    """Return the first statement of a method that says something, or FedAvg's."""
    return next(filter(None, stated[1:]), stated[0])


def only(stated: Sequence[Any]) -> Any:
    """Return the function of the only method that has another than FedAvg, or FedAvg's."""
    plain = stated[0]
    return next((function for function in stated if function.__func__ is not plain.__func__), plain)


def chain(*rules: Rules) -> Rules:
    """Merge rules, for example FedProx's and SCAFFOLD's, so that a client follows both.

    Penalties, transforms and companions are concatenated in order. At most one of the rules may set
    `start`, one `criterion` and one `from_samples`. Every `finish` that is not FedAvg's is called
    in turn, and their uploads are merged by name. If no upload has sums, the model is sent.

    Raises:
        SettingsError: two of the rules have a start, a criterion, a `from_samples`, or a transform
            of the same name.
    """
    finishes = tuple(rule.finish for rule in rules if rule.finish is not send_model)
    return Rules(
        start=_single("start", [r.start for r in rules if r.start is not receive_model])
        or receive_model,
        criterion=_single("criterion", [r.criterion for r in rules if r.criterion]),
        penalties=tuple(penalty for rule in rules for penalty in rule.penalties),
        transforms=tuple(transform for rule in rules for transform in rule.transforms),
        companions=tuple(companion for rule in rules for companion in rule.companions),
        finish=_one_finish(finishes, sends_model=len(finishes) < len(rules)),
        from_samples=_single("from_samples", [r.from_samples for r in rules if r.from_samples]),
    )


def _one_finish(finishes: Sequence[Finish], sends_model: bool) -> Finish:
    if not finishes:
        return send_model
    if len(finishes) == 1 and not sends_model:
        return finishes[0]
    return partial(_finish_all, finishes, sends_model)


def _single(part: str, functions: Sequence[Any]) -> Any:
    """Return the only function, or None."""
    if len(functions) > 1:
        names = " and ".join(map(_name, functions[:2]))
        raise SettingsError(f"rules: {names} each set the {part}; rules that chain may set one")
    return functions[0] if functions else None


def _name(function: Any) -> str:
    function = function.func if isinstance(function, partial) else function
    return f"{function.__module__}.{function.__qualname__}"


def _finish_all(
    finishes: Sequence[Finish], sends_model: bool, view: View, trained: Trained
) -> Upload:
    """Merge the uploads of several rules."""
    uploads = [finish(view, trained) for finish in finishes]
    if sends_model and not any(upload.sums for upload in uploads):
        uploads.append(send_model(view, trained))
    merged: dict[str, Any] = {
        field.name: _merge(field.name, [getattr(upload, field.name) for upload in uploads])
        for field in fields(Upload)
        if field.name not in ("bytes_up", *OF_STAGES)
    }
    if any(upload.bytes_up is not None for upload in uploads):
        sharing = [upload.sums[SHARED] for upload in uploads if SHARED in upload.sums]
        twice = sum(nbytes({SHARED: model}) for model in sharing[1:])
        merged["bytes_up"] = sum(upload.sent_bytes() for upload in uploads) - twice
    return Upload(**merged)


def _merge(field: str, values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the union of mappings."""
    merged: dict[str, Any] = {}
    for value in values:
        for name, tensors in value.items():
            if name in merged and not (name == SHARED and _same_tensors(merged[name], tensors)):
                raise SettingsError(
                    f"rules: two that are chained give back {field} {name!r}; names must differ"
                    f" (except {SHARED!r}, if it holds the same tensors)"
                )
            merged.setdefault(name, tensors)
    return merged


def _same_tensors(tensors: Tensors, others: Tensors) -> bool:
    same = isinstance(tensors, Mapping) and tensors.keys() == others.keys()
    return same and all(tensors[name] is others[name] for name in tensors)
