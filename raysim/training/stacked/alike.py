"""Networks, runs and passes whose clients can be stacked, and differences that prevent it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from raysim.config import Settings
from raysim.core.layers import BATCH_NORMS
from raysim.core.rules import Pass
from raysim.training.stacked.numbers import UnstackableError, in_common, merge

SHARED = ("dataset", "model", "engine")
"""Settings in which runs must be equal; `method` and `local` may differ in numbers."""


def unsupported_reason(network: nn.Module) -> str | None:
    """Return why a network's clients cannot be stacked, or None if they can."""
    for name, module in network.named_modules():
        if isinstance(module, nn.RNNBase):
            return f"{type(module).__name__} ({name}) has no batched kernel with weights per client"
        if isinstance(module, BATCH_NORMS) and module.momentum is None:
            return f"{type(module).__name__} ({name}) has no momentum"
    return None


def differing_module(first: nn.Module, second: nn.Module) -> str | None:
    """Return the module in which two networks differ besides tensor values, or None."""
    one, other = ([*module.named_modules()] for module in (first, second))
    if len(one) != len(other):
        return "number of modules"
    for (name, mine), (its_name, its) in zip(one, other, strict=True):
        if name != its_name or type(mine) is not type(its) or _plain(mine) != _plain(its):
            return f"module {name or type(mine).__name__}"
    shapes = [[(n, t.shape) for n, t in each.state_dict().items()] for each in (first, second)]
    return None if shapes[0] == shapes[1] else "shapes of tensors"


def _plain(module: nn.Module) -> dict[str, Any]:
    """Return a module's own numbers and strings, without its mode, which each pass sets."""
    own = {key: value for key, value in vars(module).items() if key != "training"}
    return {key: value for key, value in own.items() if isinstance(value, int | float | str)}


def why_apart(first: Settings, second: Settings) -> str | None:
    """Return the difference of two runs that prevents stacking their clients, or None."""
    for name in SHARED:
        if getattr(first, name) != getattr(second, name):
            return f"{name} differs"
    try:
        for name in ("method", "local"):
            merge([getattr(first, name), getattr(second, name)], [], name)
    except UnstackableError as error:
        return str(error)
    return None


def groups_of(passes: Sequence[Pass]) -> list[list[int]]:
    """Group the positions of passes whose rules differ only in numbers."""
    groups: list[list[int]] = []
    for number, pass_ in enumerate(passes):
        group = next((each for each in groups if _is_alike(passes[each[0]], pass_)), None)
        if group is None:
            groups.append([number])
        else:
            group.append(number)
    return groups


def _is_alike(first: Pass, second: Pass) -> bool:
    common = [(each.trainable, in_common(each.rules)) for each in (first, second)]
    try:
        merge(common, [], "pass")
    except UnstackableError:
        return False
    return True
