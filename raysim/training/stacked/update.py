"""Updates of stacked parameters, with different numbers for each client if needed.

Legend: K clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.func import vmap

from raysim.config import LocalSettings
from raysim.core.optimizer import STEP, Optimizer, add_times
from raysim.core.tensors import Groups
from raysim.training.stacked.numbers import merge
from raysim.training.update import Update, scaled_to

ELEMENTWISE = "raysim.optimizers."
"""Prefix of modules whose directions need no `vmap`: an element's depends on that element alone."""


class StackedUpdate(Update):
    """Updates of tensors [K, ...]; numbers that all clients share are scalars.

    Either all clients clip, or none; their optimizers differ in numbers alone.
    """

    def __init__(
        self,
        local: Sequence[LocalSettings],
        optimizers: Sequence[Optimizer],
        rates: Sequence[float],
        device: torch.device,
        equal: bool = False,
    ) -> None:
        """Set local settings, optimizer and learning rate of each client.

        With `equal`, equal numbers are kept per client, too.
        """
        super().__init__(local[0], optimizers[0], rates[0])
        own = partial(_own_numbers, device=device, equal=equal)
        self._rates = own(rates)
        self._norms = own([each.clip_norm or 0.0 for each in local])
        self._decays = own([each.weight_decay for each in local])
        columns: list[list[float]] = []
        self._build = merge([*optimizers], columns, "optimizer", equal)
        self._columns = [torch.tensor(c, dtype=torch.float64, device=device) for c in columns]
        self._by_dims: dict[int, Optimizer] = {}
        self._steps = torch.zeros(len(local), dtype=torch.float64, device=device)

    def start_each(
        self, params: Sequence[Tensor], names: Sequence[str], kept: Sequence[Groups]
    ) -> None:
        """Start with zeros beside the parameters, or with what each client kept of them.

        Raises:
            RunError: other parameters were trained before.
        """
        self.start(params, names, {})
        for k, groups in enumerate(kept):
            if groups:
                own = Update(self._local, self.optimizer, 0.0)
                own.start([param[k] for param in params], names, groups)
                for stacked, slots in zip(self._slots, own._slots, strict=True):
                    for slot, tensor in slots.items():
                        stacked[slot][k] = tensor
                self._steps[k] = own._steps

    def kept_of(self, k: int, names: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """Return what the optimizer of one client keeps; see `kept`."""
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
        """Return the gradients, each client's scaled to its `local.clip_norm` if need be."""
        if not self._clips:
            return gradients
        most = self._local.clip_norm if self._norms is None else self._norms
        return scaled_to(most, gradients, (len(self._steps),))

    def add_weight_decay(self, gradients: list[Tensor], params: list[Tensor]) -> list[Tensor]:
        """Return the gradients plus those of the weight decay, unless it is decoupled."""
        if self._decays is None or self.optimizer.decoupled:
            return super().add_weight_decay(gradients, params)
        return _added(gradients, params, self._decays)

    def add_decoupled_decay(self, directions: list[Tensor], params: list[Tensor]) -> list[Tensor]:
        """Return the directions plus those of the weight decay, if it is decoupled."""
        if self._decays is None or not self.optimizer.decoupled:
            return super().add_decoupled_decay(directions, params)
        return _added(directions, params, self._decays)

    def _direction(self, gradient: Tensor, slots: Mapping[str, Tensor]) -> Tensor:
        if not type(self.optimizer).direction.__module__.startswith(ELEMENTWISE):
            every = vmap(self._direction_of_one, randomness="different")
            direction: Tensor = every(gradient, {**slots}, self._steps, self._columns)
            return direction
        dims = gradient.dim()
        if dims not in self._by_dims:
            numbers = [_beside(column, gradient) for column in self._columns]
            self._by_dims[dims] = self._build(numbers)
        return self._by_dims[dims].direction(gradient, slots, _beside(self._steps, gradient))

    def _direction_of_one(
        self, gradient: Tensor, slots: Mapping[str, Tensor], step: Tensor, numbers: list[Tensor]
    ) -> Tensor:
        direction: Tensor = self._build(numbers).direction(gradient, slots, step)
        return direction

    def move(self, params: list[Tensor], directions: list[Tensor]) -> None:
        """Move the parameters against the directions."""
        if self._rates is None:
            super().move(params, directions)
            return
        for param, direction in zip(params, directions, strict=True):
            param.addcmul_(direction, _beside(self._rates, param).to(param.dtype), value=-1)


def _own_numbers(numbers: Sequence[float], device: torch.device, equal: bool) -> Tensor | None:
    """Return the number of each client [K], or None if all are equal."""
    if len({*numbers}) == 1 and not equal:
        return None
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def _beside(numbers: Tensor, tensor: Tensor) -> Tensor:
    """Return numbers [K] in a shape that broadcasts to a tensor [K, ...]."""
    return numbers.view(-1, *(1,) * (tensor.dim() - 1))


def _added(tensors: list[Tensor], others: list[Tensor], factors: Tensor) -> list[Tensor]:
    """Return `tensor + factor * other` for each pair."""
    pairs = zip(tensors, others, strict=True)
    return [add_times(a, b, _beside(factors, b)) for a, b in pairs]
