"""SGD on stacked parameters, with different numbers for each client if needed.

Legend: K clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from raysim.config import LocalSettings
from raysim.training.sgd import Sgd


class StackedSgd(Sgd):
    """Steps of SGD on tensors [K, ...]; numbers that all clients share are scalars.

    Either all clients have momentum, or none.
    """

    def __init__(
        self,
        local: Sequence[LocalSettings],
        rates: Sequence[float],
        device: torch.device,
        equal: bool = False,
    ) -> None:
        """Set local settings and learning rate of each client.

        With `equal`, equal numbers are kept per client, too.
        """
        super().__init__(local[0], rates[0])
        own = partial(_own_numbers, device=device, equal=equal)
        self._rates = own(rates)
        self._momenta = own([each.momentum for each in local])
        self._decays = own([each.weight_decay for each in local])

    def add_weight_decay(self, gradients: list[Tensor], params: list[Tensor]) -> list[Tensor]:
        """Return the gradients plus those of the weight decay."""
        if self._decays is None:
            return super().add_weight_decay(gradients, params)
        return _added(gradients, params, self._decays)

    def apply_momentum(self, gradients: list[Tensor]) -> list[Tensor]:
        """Update the momentum by the gradients; return the direction of the step."""
        if self._momenta is None or not self._local.momentum:
            return super().apply_momentum(gradients)
        if not self.velocity:
            self.velocity = [gradient.clone() for gradient in gradients]
        else:
            for velocity, gradient in zip(self.velocity, gradients, strict=True):
                velocity.mul_(_beside(self._momenta, velocity)).add_(gradient)
        if self._local.nesterov:
            return _added(gradients, self.velocity, self._momenta)
        return self.velocity

    def step(self, params: list[Tensor], directions: list[Tensor]) -> None:
        """Move the parameters against the directions."""
        if self._rates is None:
            super().step(params, directions)
            return
        for param, direction in zip(params, directions, strict=True):
            param.addcmul_(direction, _beside(self._rates, param), value=-1)


def _own_numbers(numbers: Sequence[float], device: torch.device, equal: bool) -> Tensor | None:
    """Return the number of each client [K], or None if all are equal."""
    if len({*numbers}) == 1 and not equal:
        return None
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def _beside(numbers: Tensor, tensor: Tensor) -> Tensor:
    """Return numbers [K] in a shape that broadcasts to a tensor [K, ...]."""
    return numbers.to(tensor.dtype).view(-1, *(1,) * (tensor.dim() - 1))


def _added(tensors: list[Tensor], others: list[Tensor], factors: Tensor) -> list[Tensor]:
    """Return `tensor + factor * other` for each pair."""
    pairs = zip(tensors, others, strict=True)
    return [torch.addcmul(a, b, _beside(factors, b)) for a, b in pairs]
