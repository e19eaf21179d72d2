"""Updates of parameters by their gradients: clipping, weight decay, optimizer, move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raysim.api.optimizer import STEP, Optimizer
from raysim.config import LocalSettings
from raysim.errors import RunError
from raysim.numbers.tensors import Groups, as_real, like
from raysim.numbers.tensors.torch_private import foreach_add, foreach_add_

TINY = 1e-6
"""Added to the norm of gradients, as torch.nn.utils.clip_grad_norm_ does."""


def coupled_decay(local: LocalSettings, optimizer: Optimizer) -> float:
    """Return the weight decay that is a part of the gradient."""
    return 0.0 if optimizer.decoupled else local.weight_decay


class Update:
    """Updates of a list of tensors in place.

    A step is `clip`, `add_weight_decay`, `directions`, `add_decoupled_decay`, `move`, in this
    order, with transforms of methods before and after `directions`.
    """

    def __init__(self, local: LocalSettings, optimizer: Optimizer, lr: float) -> None:
        """Set the optimizer with its numbers, and the learning rate."""
        self._local, self.optimizer, self._lr = local, optimizer, lr
        self._coupled = coupled_decay(local, optimizer)
        self._decoupled = local.weight_decay if optimizer.decoupled else 0.0
        self._clips = local.clip_norm is not None
        self._slots: list[dict[str, Tensor]] = []
        self._steps: Any = 0
        self._is_complex = False

    def start(self, params: Sequence[Tensor], names: Sequence[str], kept: Groups) -> None:
        """Start with slots of zeros, or with the kept slots.

        Raises:
            RunError: other parameters were trained before.
        """
        if self.optimizer.keeps_gradient:
            return
        self._is_complex = any(param.is_complex() for param in params)
        for name, param in zip(names, params, strict=True):
            slots = {
                slot: torch.empty_like(as_real(param)).copy_(kept_slot(kept[slot], name, param))
                if kept
                else torch.zeros_like(as_real(param))
                for slot in self.optimizer.slots
            }
            self._slots.append(slots)
        if kept:
            self._steps = int(kept[STEP][STEP])

    def kept(self, names: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """Return the optimizer's state: its slots by name of the parameters, and its steps."""
        if not self._slots:
            return {}
        return {**self.slots(names), STEP: {STEP: torch.tensor(self._steps)}}

    def slots(self, names: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """Return the slots, by slot and name of the parameter."""
        return {
            slot: {name: own[slot] for name, own in zip(names, self._slots, strict=True)}
            for slot in self.optimizer.slots
        }

    def clip(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the gradients, scaled to `local.clip_norm` if their common norm is larger."""
        if not self._clips:
            return gradients
        return scaled_to(self._local.clip_norm, gradients, ())

    def add_weight_decay(self, gradients: list[Tensor], params: list[Tensor]) -> list[Tensor]:
        """Return the gradients plus the weight decay's, unless it is decoupled."""
        return foreach_add(gradients, params, self._coupled) if self._coupled else gradients

    def directions(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the directions of the step, by the optimizer."""
        if self.optimizer.keeps_gradient:
            return gradients
        self._steps = self._steps + 1
        pairs = zip(gradients, self._slots, strict=True)
        if not self._is_complex:  # 1% of a small network's step
            return [self._direction(gradient, slots) for gradient, slots in pairs]
        return [like(self._direction(as_real(g), slots), g) for g, slots in pairs]

    def _direction(self, gradient: Tensor, slots: Mapping[str, Tensor]) -> Tensor:
        return self.optimizer.direction(gradient, slots, self._steps)

    def add_decoupled_decay(self, directions: list[Tensor], params: list[Tensor]) -> list[Tensor]:
        """Return the directions plus the weight decay's, if it is decoupled."""
        decay = self._decoupled
        return foreach_add(directions, params, decay) if decay else directions

    def move(self, params: list[Tensor], directions: list[Tensor]) -> None:
        """Move the parameters against the directions."""
        foreach_add_(params, directions, -self._lr)


def scaled_to(most: Any, gradients: list[Tensor], stack: tuple[int, ...]) -> list[Tensor]:
    """Return gradients, scaled if their common norm is above `most`.

    Args:
        most: The largest norm.
        gradients: The gradients [...]; of a stack [K, ...].
        stack: (K,) for a stack, else ().
    """
    norms = [torch.linalg.vector_norm(g.reshape(*stack, -1), dim=-1) for g in gradients]
    norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)  # [] or [K]
    factor = (most / (norm + TINY)).clamp(max=1)
    return [
        g * factor.to(as_real(g).dtype).view((*stack, *(1,) * (g.dim() - len(stack))))
        for g in gradients
    ]


def kept_slot(kept: Mapping[str, Tensor], name: str, param: Tensor) -> Tensor:
    """Return the tensor that an optimizer kept for a parameter.

    Raises:
        RunError: nothing was kept for it.
    """
    real = as_real(param)
    if name not in kept or kept[name].shape != real.shape:
        raise RunError(
            f"local.keep=true: nothing was kept of the optimizer for parameter {name}"
            f" {[*real.shape]}: this pass trains other parameters than the last one"
        )
    return kept[name]
