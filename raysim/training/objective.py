"""Objective of a local step: to minimise, and to report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from raysim.api.rules import Batch, Outputs, Rules, View
from raysim.numbers.tensors import Tensors, as_real
from raysim.numbers.tensors.torch_private import gradients_of


def objective(rules: Rules, view: View, outputs: Outputs, batch: Batch) -> Tensor:
    """Return the objective to minimise: the criterion at logits / T, plus the penalties."""
    values = view.values
    if rules.divisors:
        divisors = rules.divisors(view, outputs, batch).detach()
        values = values._replace(temperature=divisors.view(-1, *(1,) * (outputs.logits.dim() - 1)))
    scaled = outputs if values.keeps_loss else outputs.scaled(values.temperature)
    if rules.criterion:
        seen = replace(view, values=values) if rules.divisors else view
        value = rules.criterion(seen, scaled, batch)
    else:
        value = batch.loss(scaled.logits)
    for penalty in rules.penalties:
        value = value + penalty(view, outputs, batch)
    return value


def derivatives(
    value: Tensor, points: Sequence[Tensor], along: Sequence[Tensor] | None
) -> list[Tensor]:
    """Return the gradients of a value at points, or the products of its Hessian with a vector.

    Args:
        value: The value, with its graph.
        points: The points.
        along: The vector, a tensor for each point; None for the gradients.
    """
    if along is None:
        return gradients_of(value, points)
    gradients = torch.autograd.grad(
        value, points, create_graph=True, allow_unused=True, materialize_grads=True
    )
    product = inner_product(gradients, along)
    if not product.requires_grad:  # a loss that is linear in the points
        return [torch.zeros_like(point) for point in points]
    return gradients_of(product, points)


def inner_product(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Return the inner product of two vectors, as a value to differentiate."""
    pairs = zip(tensors, others, strict=True)
    return torch.stack([(as_real(a) * as_real(b)).sum() for a, b in pairs]).sum()


def reported_objective(rules: Rules, states: Mapping[str, Tensors], value: Tensor) -> Tensor:
    """Return the objective plus the transforms' terms; the transforms add their gradients."""
    for transform in rules.transforms:
        if transform.term:
            value = value + states[transform.name][transform.term]
    return value
