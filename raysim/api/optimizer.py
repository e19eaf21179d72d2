"""Interface of an optimizer: from the gradient of a step to its direction.

    w <- w - lr * direction                                coupled weight decay: g <- g + decay * w
    w <- w - lr * (direction + weight_decay * w)           decoupled

Clipping, weight decay, transforms of methods and the move itself are the engine's. An optimizer is
arithmetic on tensors, written once: it serves one client, or a stack of clients by
`torch.func.vmap`, under which the number of the step is a tensor []. Those of `raysim.optimizers`
are elementwise and take a stack as it is, with numbers of steps that broadcast to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from raysim.api.components import Acting, Registry, build_component, call, returns
from raysim.errors import SettingsError

OPTIMIZER = "optimizer"
"""Owner of the optimizer's state among a client's groups."""
STEP = "step"
"""Name of the number of steps taken, kept in addition to the slots."""
N = TypeVar("N", float, Tensor, float | Tensor)


class Optimizer(Acting, ABC):
    """Optimizer of local steps; its fields are the `local` settings that it reads."""

    _lasting: ClassVar[str] = "what lasts belongs in its slots"
    decoupled: ClassVar[bool] = False
    """Whether `local.weight_decay` shrinks the parameters, and is no part of the gradient."""

    @property
    @returns(
        f"a tuple of names other than {STEP!r}",
        lambda slots, _: (
            isinstance(slots, tuple) and all(isinstance(s, str) and s != STEP for s in slots)
        ),
    )
    def slots(self) -> tuple[str, ...]:
        """Names of the tensors kept for each parameter, of its shape; zero at first."""
        return ()

    @property
    def keeps_gradient(self) -> bool:
        """True if the direction is the gradient itself."""
        return False

    @abstractmethod
    @returns(
        "a tensor of the gradient's shape",
        lambda returned, _, gradient, *arguments: (
            isinstance(returned, Tensor) and returned.shape == gradient.shape
        ),
    )
    def direction(
        self, gradient: Tensor, slots: Mapping[str, Tensor], step: float | Tensor
    ) -> Tensor:
        """Return the direction of a step; update the slots in place, not the gradient.

        Args:
            gradient: The gradient of one parameter, real.
            slots: Its tensors.
            step: Number of the step, from 1.
        """


OPTIMIZERS: Registry[Optimizer] = Registry(
    OPTIMIZER,
    Optimizer,  # type: ignore[type-abstract]
    "local.optimizer={}",
)


@lru_cache(maxsize=256)
def build_optimizer(name: str, settings: tuple[tuple[str, Any], ...]) -> Optimizer:
    """Return the optimizer of a name, with its fields among the given ones.

    Raises:
        SettingsError: there is no such optimizer, or its fields, slots or directions are wrong.
    """
    kind = OPTIMIZERS.get(name)
    fields = {key: value for key, value in settings if key in kind.model_fields}
    for field, info in kind.model_fields.items():
        if info.is_required() and field not in fields:
            raise SettingsError(
                f"local.optimizer={name}: its field {field} has no value; give it a default, or set"
                f" local.{field} if there is such a setting"
            )
    optimizer = build_component(kind, fields, "local.")
    slots = {slot: torch.zeros(2, 3) for slot in call(optimizer, Optimizer.slots)}
    if not optimizer.keeps_gradient:
        call(optimizer, Optimizer.direction, torch.ones(2, 3), slots, 1)
    return optimizer


@lru_cache(maxsize=4096)
def effective_steps(
    optimizer: Optimizer | None, steps: int, before: float = 0.0, after: float = 0.0
) -> float:
    """Return how far local steps lead along a constant gradient, in steps of plain SGD.

        u <- u - direction(1 + before * u) - after * u           u starts at 0; -u is returned

    Args:
        optimizer: The optimizer, of directions linear in the gradients; None for plain SGD.
        steps: Number of steps.
        before: Learning rate times the strength of the pulls to a fixed point before the optimizer.
        after: Learning rate times the strength of the pulls after the optimizer.
    """
    if optimizer is None or optimizer.keeps_gradient:
        return _plain_steps(steps, before + after)
    one, moved = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    slots = {slot: torch.zeros_like(one) for slot in optimizer.slots}
    for step in range(1, steps + 1):
        direction = optimizer.direction(one + before * moved, slots, step)
        moved = moved * (1 - after) - direction
    return -float(moved)


def _plain_steps(steps: int, pull: float) -> float:
    return sum((1 - pull) ** step for step in range(steps)) if pull else float(steps)


def beside(number: N, tensor: Tensor) -> N:
    """Return a number of a step as a factor of a tensor; a tensor number is cast to its type.

    In a stack, numbers are in float64 until then, because 1 - 0.999 has five digits in float32.
    """
    return number.to(tensor.dtype) if isinstance(number, Tensor) else number
