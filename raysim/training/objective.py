"""Objective of a local step: to minimise, and to report."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from raysim.core.rules import Batch, Outputs, Rules, View
from raysim.core.tensors import Tensors


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
