"""Gradient norms, and distances to the decision boundary, under a temperature.

Source: FLex&Chill, section 3.1, figures 1 and 2. The gradient is of one sample's loss at T, with
respect to the first weight layer's own tensors. The distance of a sample to the decision boundary
is the length of the shortest step along the sign of the loss's gradient at the input (Goodfellow et
al., 2015) that changes the predicted class; it is measured before and after one step of SGD on that
sample alone, without momentum and weight decay. Chosen here: the loss at the input is the loss for
the predicted class at T=1; 100 steps from 0.0001 to 1 are tried, at equal ratios; a sample has
distance 1 if none of them changes its class.

Legend: n samples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.analysis.base import Analysis, Columns, MeasuredRound, Need, at_equal_distances
from raysim.api.rules import Trained, View
from raysim.numbers.tensors import Tensors, at_least_float32
from raysim.numbers.tensors.calls import call_at

SAMPLES, MOST_CLIENTS = 20, 20
"""Numbers of samples of a client, and of clients of a cohort, that are measured."""
SHORTEST, STEPS = -4, 100
"""Exponent of the shortest step along the gradient that is tried; number of steps up to 1."""
Logits = Callable[[Tensors, Tensor], Tensor]


class Temperature(Analysis):
    """Gradient norm of single samples at the first layer, and their distance to the boundary."""

    needs: ClassVar[tuple[Need, ...]] = ("classes", "real_inputs")

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per sample of the cohort's clients, measured at the global model."""
        part = partial(_measure, evaluated.network, evaluated.lr)
        measured = evaluated.measure(part, evaluated.cohort[:MOST_CLIENTS])
        if not measured:
            return {}
        names = [*next(iter(measured.values()))]
        columns = {
            n: np.concatenate([figures[n].numpy() for figures in measured.values()]) for n in names
        }
        clients = [np.full(len(figures["correct"]), client) for client, figures in measured.items()]
        return {"client": np.concatenate(clients), **columns}


def _measure(network: nn.Module, lr: float, view: View, trained: Trained) -> Tensors:
    """Return the values [n] of some of the client's samples."""
    data = at_equal_distances(trained.data, SAMPLES)
    whole = {**trained.base, **view.params}
    tensors = {name: tensor.detach() for name, tensor in whole.items()}
    logits = partial(_logits, network)
    samples = [
        _of_sample(logits, tensors, view, lr=lr, x=data.x[n : n + 1], y=data.y[n : n + 1])
        for n in range(len(data.y))
    ]
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def _of_sample(
    logits: Logits, tensors: Tensors, view: View, *, lr: float, x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """Return the values of one sample x [1, ...] of class y [1]."""
    points = {name: tensors[name].clone().requires_grad_() for name in view.trainable}
    with torch.enable_grad():
        outputs = logits({**tensors, **points}, x)
        loss = F.cross_entropy(view.scaled(outputs), y.long())
        gradients = dict(zip(points, torch.autograd.grad(loss, [*points.values()]), strict=True))
    first = next(iter(points)).rpartition(".")[0]
    of_first_layer = [
        g.flatten() for name, g in gradients.items() if name.rpartition(".")[0] == first
    ]
    stepped = {name: tensors[name] - lr * gradient for name, gradient in gradients.items()}
    return {
        "correct": (outputs.argmax(-1) == y)[0],
        "gradient_norm": torch.cat(of_first_layer).norm(),
        "distance_before": boundary_distance(partial(logits, tensors), x),
        "distance_after": boundary_distance(partial(logits, {**tensors, **stepped}), x),
    }


def boundary_distance(logits: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the shortest step that changes the class of one input x [1, ...]; 1 if none does.

    Args:
        logits: `logits(x [B, ...])`: logits [B, C].
        x: The input.
    """
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        outputs = logits(point)
        predicted = outputs.argmax(-1)
        direction = torch.autograd.grad(F.cross_entropy(outputs, predicted), point)[0].sign()
    steps = torch.logspace(SHORTEST, 0, STEPS, dtype=x.dtype, device=x.device)
    with torch.no_grad():
        along = x + steps.view(-1, *[1] * (x.dim() - 1)) * direction
        changed = logits(along).argmax(-1) != predicted
    return steps[changed][0] if bool(changed.any()) else steps[-1]


def _logits(network: nn.Module, tensors: Tensors, x: Tensor) -> Tensor:
    """Return the logits [B, C] of inputs; of two classes where the network has one logit."""
    logits: Tensor = call_at(network, tensors, x.clone())
    logits = at_least_float32(logits)
    return logits if logits.shape[-1] > 1 else torch.cat([-logits, logits], dim=-1) / 2
