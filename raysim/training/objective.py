"""Objective of a local step: to minimise, and to report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from raysim.core.rules import Batch, Outputs, Rules, View
from raysim.core.tensors import Tensors


def objective(rules: Rules, view: View, outputs: Outputs, batch: Batch) -> Tensor:
    """Return the objective to minimise: the criterion at logits / T, plus the penalties."""
    temperature, of_samples = view.temperature, rules.sample_temperatures
    if of_samples:
        own = of_samples(view, outputs, batch).detach()
        temperature = own.view(-1, *(1,) * (outputs.logits.dim() - 1))
    at_one = not isinstance(temperature, Tensor) and temperature == 1
    scaled = outputs if at_one else outputs.scaled(temperature)
    if rules.criterion:
        seen = replace(view, temperature=temperature) if of_samples else view
        value = rules.criterion(seen, scaled, batch)
    else:
        value = batch.loss(scaled.logits)
    for penalty in rules.penalties:
        value = value + penalty(view, outputs, batch)
    return value


def reported_objective(rules: Rules, states: Mapping[str, Tensors], value: Tensor) -> Tensor:
    """Return the objective plus the terms whose gradients the transforms add."""
    for transform in rules.transforms:
        if transform.term:
            value = value + states[transform.name][transform.term]
    return value
