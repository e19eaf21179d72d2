"""Updates of stacked parameters, with different learning rates of clients if needed.

Legend: K clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.func import vmap

from raysim.api.optimizer import STEP, Optimizer
from raysim.config import LocalSettings
from raysim.numbers.tensors import Groups
from raysim.training.update import Update, scaled_to

ELEMENTWISE = "raysim.optimizers."
"""Prefix of modules with elementwise directions, which need no `vmap`."""


class StackedUpdate(Update):
    """Updates of tensors [K, ...], with a learning rate for each client if they differ."""

    def __init__(
        self,
        local: LocalSettings,
        optimizer: Optimizer,
        rates: Sequence[float],
        device: torch.device,
    ) -> None:
        """Set the optimizer with its numbers, and the learning rate of each client."""
        super().__init__(local, optimizer, rates[0])
        self._rates = None
        if len({*rates}) > 1:
            self._rates = torch.tensor(rates, dtype=torch.float64, device=device)
        self._steps = torch.zeros(len(rates), dtype=torch.float64, device=device)

    def start_each(
        self, params: Sequence[Tensor], names: Sequence[str], kept: Sequence[Groups]
    ) -> None:
        """Start with slots of zeros, or with the slots that each client kept.

        Raises:
            RunError: other parameters were trained before.
        """
        self.start(params, names, {})
        for k, groups in enumerate(kept):
            if groups:
                update = Update(self._local, self.optimizer, 0.0)
                update.start([param[k] for param in params], names, groups)
                for stacked, slots in zip(self._slots, update._slots, strict=True):
                    for slot, tensor in slots.items():
                        stacked[slot][k] = tensor
                self._steps[k] = update._steps

    def kept_of(self, k: int, names: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """Return the state of one client's optimizer; see `kept`."""
        if not self._slots:
            return {}
        slots = {
            slot: {name: tensor[k] for name, tensor in tensors.items()}
            for slot, tensors in self.slots(names).items()
        }
        return {**slots, STEP: {STEP: self._steps[k].long()}}

    def moving(self) -> list[Tensor]:
        """Return the tensors [K, ...] that a step changes besides the parameters."""
        return [self._steps, *super().moving()]

    def clip(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the gradients, each client's scaled to `local.clip_norm` if need be."""
        if not self._clips:
            return gradients
        return scaled_to(self._local.clip_norm, gradients, (len(self._steps),))

    def _direction(self, gradient: Tensor, slots: Mapping[str, Tensor]) -> Tensor:
        of_one = self.optimizer.direction
        if not of_one.__module__.startswith(ELEMENTWISE):
            every = vmap(of_one, randomness="different")
            direction: Tensor = every(gradient, {**slots}, self._steps)
            return direction
        return of_one(gradient, slots, _beside(self._steps, gradient))

    def move(self, params: list[Tensor], directions: list[Tensor]) -> None:
        """Move the parameters against the directions."""
        if self._rates is None:
            super().move(params, directions)
            return
        for param, direction in zip(params, directions, strict=True):
            param.addcmul_(direction, _beside(self._rates, param).to(param.dtype), value=-1)


def _beside(numbers: Tensor, tensor: Tensor) -> Tensor:
    """Return numbers [K] in a shape that broadcasts to a tensor [K, ...]."""
    return numbers.view(-1, *(1,) * (tensor.dim() - 1))
