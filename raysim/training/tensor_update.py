"""Updates whose learning rate and number of steps are tensors, so that CUDA graphs read them.

An elementwise optimizer computes the directions of all parameters of a dtype at once: Adam then
takes a dozen kernels, not a dozen for each parameter.

Legend: K clients of a stack.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.func import vmap

from raysim.api.optimizer import STEP, Optimizer
from raysim.config import LocalSettings
from raysim.numbers.tensors import Groups, Tensors, as_real, like
from raysim.numbers.tensors.torch_private import foreach_add_
from raysim.training.update import Update, kept_slot, scaled_to

ELEMENTWISE = "raysim.optimizers."
"""Prefix of modules with elementwise directions, which take several parameters as one."""


@dataclass(frozen=True)
class _Part:
    """Parameters whose directions are computed at once: of one dtype, or one parameter.

    Attributes:
        numbers: The parameters, by their places among all.
        shapes: Their shapes as reals, without the stack.
    """

    numbers: Sequence[int]
    shapes: Sequence[torch.Size]


class TensorUpdate(Update):
    """Updates of tensors [...] of one client, or [K, ...] of a stack."""

    def __init__(
        self,
        local: LocalSettings,
        optimizer: Optimizer,
        minus_lr: float | Tensor,
        stack: tuple[int, ...] = (),
    ) -> None:
        """Set the optimizer with its numbers, and the rate.

        Args:
            local: The settings of local training.
            optimizer: The optimizer.
            minus_lr: The learning rate times -1, [] or [K]: read in every step. A number is faster
                on a CPU, but it would be a constant of a recording.
            stack: (K,) for a stack, else ().
        """
        super().__init__(local, optimizer, 0.0)
        self.minus_lr, self._stack = minus_lr, stack
        self._joins = type(optimizer).direction.__module__.startswith(ELEMENTWISE)
        self._parts: list[_Part] = []
        self._held: list[dict[str, Tensor]] = []  # of each part, its slots [*stack, n]
        self._number = torch.zeros(())  # until `start`

    def start(self, params: Sequence[Tensor], names: Sequence[str], kept: Groups) -> None:
        """Start with slots of zeros, or with the slots that one client kept.

        Raises:
            RunError: other parameters were trained before.
        """
        if self.optimizer.keeps_gradient:
            return
        self._number = torch.zeros(self._stack, dtype=torch.float64, device=params[0].device)
        reals, first = [as_real(param) for param in params], len(self._stack)
        places: dict[torch.dtype | int, list[int]] = {}
        for number, real in enumerate(reals):
            places.setdefault(real.dtype if self._joins else number, []).append(number)
        for numbers in places.values():
            part = _Part(numbers, [reals[number].shape[first:] for number in numbers])
            joined = torch.Size([sum(shape.numel() for shape in part.shapes)])
            shape = joined if self._joins else part.shapes[0]
            held = {
                slot: reals[numbers[0]].new_zeros((*self._stack, *shape))
                for slot in self.optimizer.slots
            }
            self._parts.append(part)
            self._held.append(held)
        self._slots = self._views()
        if kept:
            self._take_over(params, names, kept)

    def _views(self) -> list[dict[str, Tensor]]:
        """Return the slots of each parameter, in the order of the parameters."""
        views: dict[int, dict[str, Tensor]] = {}
        for part, held in zip(self._parts, self._held, strict=True):
            by_slot = {slot: self._split(part, tensor) for slot, tensor in held.items()}
            for place, number in enumerate(part.numbers):
                views[number] = {slot: tensors[place] for slot, tensors in by_slot.items()}
        return [views[number] for number in sorted(views)]

    def _take_over(
        self, params: Sequence[Tensor], names: Sequence[str], kept: Groups, *client: int
    ) -> None:
        """Copy what a client kept into its slots; `client` is (k,) in a stack, else empty."""
        for name, param, slots in zip(names, params, self._slots, strict=True):
            for slot, tensor in slots.items():
                tensor[client].copy_(kept_slot(kept[slot], name, param[client]))
        self._number[client] = kept[STEP][STEP].to(self._number)

    def start_each(
        self, params: Sequence[Tensor], names: Sequence[str], kept: Sequence[Groups]
    ) -> None:
        """Start with slots of zeros, or with the slots that each client of a stack kept.

        Raises:
            RunError: other parameters were trained before.
        """
        self.start(params, names, {})
        for k, groups in enumerate(kept):
            if groups:
                self._take_over(params, names, groups, k)

    def tree(self) -> dict[str, Tensor]:
        """Return the tensors that steps change besides the parameters."""
        if self.optimizer.keeps_gradient:
            return {}
        slots = {
            f"{number}/{slot}": tensor
            for number, held in enumerate(self._held)
            for slot, tensor in held.items()
        }
        return {STEP: self._number, **slots}

    def on(self, tree: Tensors, minus_lr: float | Tensor | None = None) -> Self:
        """Return this update with other tensors, as `tree` returns them, and maybe another rate."""
        other = copy.copy(self)
        if minus_lr is not None:
            other.minus_lr = minus_lr
        other._number = tree.get(STEP, self._number)
        other._held = [
            {slot: tree[f"{number}/{slot}"] for slot in held}
            for number, held in enumerate(self._held)
        ]
        other._slots = other._views()
        return other

    def kept(self, names: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """Return the optimizer's state: its slots by name of the parameters, and its steps."""
        return self.kept_of((), names)

    def kept_of(
        self, client: tuple[int, ...], names: Sequence[str]
    ) -> dict[str, dict[str, Tensor]]:
        """Return the state of the optimizer of client (k,) of a stack, or of the one client, ()."""
        if not self._slots:
            return {}
        slots = {
            slot: {name: own[slot][client] for name, own in zip(names, self._slots, strict=True)}
            for slot in self.optimizer.slots
        }
        return {**slots, STEP: {STEP: self._number[client].long()}}

    def clip(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the gradients, each client's scaled to `local.clip_norm` if need be."""
        return (
            scaled_to(self._local.clip_norm, gradients, self._stack) if self._clips else gradients
        )

    def directions(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the directions of the step, by the optimizer."""
        if self.optimizer.keeps_gradient:
            return gradients
        self._number += 1
        directions = [*gradients]
        reals = [as_real(gradient) for gradient in gradients]
        for part, held in zip(self._parts, self._held, strict=True):
            of_part = [reals[number] for number in part.numbers]
            if self._joins:
                of_part = [torch.cat([g.reshape(*self._stack, -1) for g in of_part], dim=-1)]
            direction = self._direction(of_part[0], held)
            for number, each in zip(part.numbers, self._split(part, direction), strict=True):
                directions[number] = like(each, gradients[number])
        return directions

    def _split(self, part: _Part, tensor: Tensor) -> list[Tensor]:
        """Return the parts of a tensor of all parameters of a part, as views."""
        if not self._joins:
            return [tensor]
        sizes = [shape.numel() for shape in part.shapes]
        return [
            own.view(*self._stack, *shape)
            for own, shape in zip(tensor.split_with_sizes(sizes, dim=-1), part.shapes, strict=True)
        ]

    def _direction(self, gradient: Tensor, slots: Mapping[str, Tensor]) -> Tensor:
        of_one = self.optimizer.direction
        if self._stack and not self._joins:
            every = vmap(of_one, randomness="different")
            direction: Tensor = every(gradient, {**slots}, self._number)
            return direction
        return of_one(gradient, slots, beside_stack(self._number, gradient))

    def move(self, params: list[Tensor], directions: list[Tensor]) -> None:
        """Move the parameters against the directions."""
        if isinstance(self.minus_lr, float):
            foreach_add_(params, directions, self.minus_lr)
            return
        for param, direction in zip(map(as_real, params), map(as_real, directions), strict=True):
            # Rounds once, as an addition with a number as factor.
            param.addcmul_(direction, beside_stack(self.minus_lr, param).to(param.dtype))


def beside_stack(numbers: Tensor, tensor: Tensor) -> Tensor:
    """Return numbers [] or [K] in a shape that broadcasts to a tensor [...] or [K, ...]."""
    return numbers.view(*numbers.shape, *(1,) * (tensor.dim() - 1)) if numbers.dim() else numbers
