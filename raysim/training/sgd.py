"""Objective of a local step, and steps of SGD."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from raysim.config import LocalSettings
from raysim.core.rules import Batch, Outputs, Rules, View
from raysim.core.tensors import Tensors
from raysim.core.tensors.torch_private import foreach_add, foreach_add_, foreach_mul_


def objective(rules: Rules, view: View, outputs: Outputs, batch: Batch) -> Tensor:
    """Return the objective to minimise: the criterion at logits / T, plus the penalties."""
    temperature = view.temperature
    at_one = not isinstance(temperature, Tensor) and temperature == 1
    scaled = outputs if at_one else outputs.scaled(temperature)
    value = rules.criterion(view, scaled, batch) if rules.criterion else batch.loss(scaled.logits)
    for penalty in rules.penalties:
        value = value + penalty(view, outputs, batch)
    return value


def reported_objective(rules: Rules, states: Mapping[str, Tensors], value: Tensor) -> Tensor:
    """Return the objective plus the terms whose gradients the transforms add."""
    for transform in rules.transforms:
        if transform.term:
            value = value + states[transform.name][transform.term]
    return value


class Sgd:
    """Steps of SGD on a list of tensors in place, with weight decay and (Nesterov) momentum.

    A step is `add_weight_decay`, `apply_momentum`, `step`, in this order, with transforms
    between them.
    """

    def __init__(self, local: LocalSettings, lr: float) -> None:
        """Set momentum and weight decay by the local settings, and the learning rate."""
        self._local, self._lr = local, lr
        self.velocity: list[Tensor] = []

    def add_weight_decay(self, gradients: list[Tensor], params: list[Tensor]) -> list[Tensor]:
        """Return the gradients plus those of the weight decay."""
        decay = self._local.weight_decay
        if not decay:
            return gradients
        return foreach_add(gradients, params, decay)

    def apply_momentum(self, gradients: list[Tensor]) -> list[Tensor]:
        """Update the momentum by the gradients; return the direction of the step."""
        local = self._local
        if not local.momentum:
            return gradients
        if self.velocity:
            foreach_mul_(self.velocity, local.momentum)
            foreach_add_(self.velocity, gradients, 1)
        else:
            self.velocity = [gradient.clone() for gradient in gradients]
        if local.nesterov:
            return foreach_add(gradients, self.velocity, local.momentum)
        return self.velocity

    def step(self, params: list[Tensor], directions: list[Tensor]) -> None:
        """Move the parameters against the directions."""
        foreach_add_(params, directions, -self._lr)
