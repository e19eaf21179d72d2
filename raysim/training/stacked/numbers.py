"""Numbers in which the clients of a stack differ, for instance in several trials of a study.

Values of several trials are merged into one value, in which each differing number is a tensor: in a
step under `vmap`, the client's. Everything else must be equal.

Legend: K clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel
from torch import Tensor

from raysim.config import LocalSettings
from raysim.core.rules import Rules
from raysim.training.job import ClientJob
from raysim.training.update import coupled_decay

Build = Callable[[Sequence[Any]], Any]
"""Function that returns a merged value, given a number for each column."""
PLAIN = (bool, int, float, str, frozenset, type(None), FunctionType, type)
"""Types whose values are compared with `==`."""


SHOWN = 40
"""Most characters of a value in a message."""


class UnstackableError(Exception):
    """Error of values that differ in more than numbers; the message names the difference."""


def merge(
    values: Sequence[Any], columns: list[list[float]], name: str, equal: bool = False
) -> Build:
    """Return the builder of one value from several values that differ in numbers alone.

    Args:
        values: The value of each client: settings, functions of rules, containers of these.
        columns: List to which the differing numbers [K] are appended.
        name: Name of the value in messages.
        equal: Whether equal numbers become columns too.

    Raises:
        UnstackableError: the values differ in something else.
    """
    first = values[0]
    same_type = len({type(value) for value in values}) == 1
    if same_type and isinstance(first, float) and (equal or any(v != first for v in values)):
        index = len(columns)
        columns.append([*values])
        return lambda numbers: numbers[index]
    if all(value is first for value in values) and not (equal and _parts_of(first)):
        return lambda numbers: first
    if same_type and isinstance(first, PLAIN) and all(value == first for value in values):
        return lambda numbers: first
    parts = [part for value in values if (part := _parts_of(value)) is not None]
    whole = same_type and len(parts) == len(values)
    if not whole or any(part.keys() != parts[0].keys() for part in parts):
        shown = list(dict.fromkeys(" ".join(repr(value).split())[:SHOWN] for value in values))
        raise UnstackableError(f"{name} differs ({', '.join(shown[:3])})")
    merged = {
        key: merge([p[key] for p in parts], columns, f"{name}.{key}", equal) for key in parts[0]
    }
    return lambda numbers: _of_parts(first, {key: part(numbers) for key, part in merged.items()})


def _parts_of(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a value by name; None if it has no known parts."""
    match value:
        case partial():
            return {"func": value.func, "args": value.args, "keywords": value.keywords}
        case MethodType():
            return {"func": value.__func__, "self": value.__self__}
        case BaseModel() if not value.__pydantic_private__:
            return {field: getattr(value, field) for field in type(value).model_fields}
        case Mapping():
            return {**value}
        case tuple() | list():
            return dict(enumerate(value))
    return None


def _of_parts(like: Any, parts: dict[Any, Any]) -> Any:
    """Return a value of these parts; settings compute their derived fields again."""
    match like:
        case partial():
            return partial(parts["func"], *parts["args"], **parts["keywords"])
        case MethodType():
            return MethodType(parts["func"], parts["self"])
        case BaseModel():
            return type(like).model_construct(**parts)
        case Mapping():
            return parts
    return tuple(parts.values())


class Step(NamedTuple):
    """Parts of the rules and local settings that a step needs."""

    rules: Rules
    temperature: float | Tensor
    weight_decay: float | Tensor


class StepNumbers:
    """Rules and local settings of a stack's clients, merged.

    Attributes:
        columns: The differing numbers, each [K] in float32, in which a step computes.
    """

    def __init__(
        self,
        jobs: Sequence[ClientJob],
        local: Sequence[LocalSettings],
        device: torch.device,
        equal: bool = False,
    ) -> None:
        """Merge the rules and settings of K clients; with `equal`, their equal numbers too.

        Raises:
            UnstackableError: they differ in more than numbers.
        """
        columns: list[list[float]] = []
        self._rules = jobs[0].rules
        self._build = merge([*map(_of_a_step, jobs, local)], columns, "rules", equal)
        self.columns = [
            torch.tensor(column, dtype=torch.float32, device=device) for column in columns
        ]

    def at(self, numbers: Sequence[Tensor]) -> Step:
        """Return the parts for a step, given a client's number of each column."""
        criterion, penalties, updates, of_samples, beside, own, _ = self._build(numbers)
        temperature, weight_decay, _ = own
        if not self.columns:
            return Step(self._rules, temperature, weight_decay)
        transforms = [
            replace(transform, update=update)
            for transform, (*_, update) in zip(self._rules.transforms, updates, strict=True)
        ]
        rules = replace(
            self._rules,
            criterion=criterion,
            penalties=tuple(penalties),
            transforms=tuple(transforms),
            sample_temperatures=of_samples,
            companions=tuple(
                replace(companion, gradient=gradient)
                for companion, (_, gradient) in zip(self._rules.companions, beside, strict=True)
            ),
        )
        return Step(rules, temperature, weight_decay)


def in_common(rules: Rules) -> tuple[Any, ...]:
    """Return the parts of rules that must be equal in a stack, except for numbers."""
    transforms = [(t.name, t.term, t.after_momentum, t.update) for t in rules.transforms]
    companions = [(each.name, each.gradient) for each in rules.companions]
    return rules.criterion, rules.penalties, transforms, rules.sample_temperatures, companions


def _of_a_step(job: ClientJob, local: LocalSettings) -> tuple[Any, ...]:
    optimizer = local.build_optimizer()
    numbers = (job.temperature, coupled_decay(local, optimizer), local.clip_norm or 0.0)
    clips = local.clip_norm is not None
    objective = (local.label_smoothing, str(local.class_weights))
    equal = (
        *(local.optimizer, optimizer.slots, local.nesterov, clips, str(local.batching)),
        str(objective),
    )
    return (*in_common(job.rules), numbers, equal)
