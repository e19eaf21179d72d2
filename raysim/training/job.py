"""What the local trainers share: a client's job, its batches, the objective, and steps of SGD.

Legend: n samples of the client, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysim.config import LocalSettings
from raysim.core.rules import Batch, Outputs, Rules, View
from raysim.core.tensors import Groups

Bounds = list[tuple[int, int]]


@dataclass(frozen=True)
class ClientJob:
    """One client's work in a pass: its rules, samples, groups and random draws."""

    rules: Rules
    epochs: int
    lr: float
    trainable: frozenset[str] | None
    data: Batch
    broadcast: Groups
    state: Groups
    personal: Groups
    augment: Callable[[Tensor, torch.Generator], Tensor]
    batches: np.random.Generator
    torch_seed: int
    generator: Callable[[str], torch.Generator]


@dataclass(frozen=True)
class LocalLosses:
    """Figures of one client's training, averaged over examples and local steps."""

    steps: int
    train_loss: float
    objective: float

    @classmethod
    def of(cls, losses: Tensor, objectives: Tensor, sizes: Sequence[int]) -> LocalLosses:
        """Average losses [S] and objectives [S] of S steps on batches of these sizes."""
        if not sizes:
            return cls(0, float("nan"), float("nan"))
        both = torch.stack([losses, objectives]).double().cpu().numpy()
        loss, objective = (both @ np.asarray(sizes, dtype=np.float64)) / sum(sizes)
        return cls(len(sizes), float(loss), float(objective))


def batch_bounds(n: int, size: int | Literal["full"], join_single: bool) -> Bounds:
    """Return (start, stop) of the batches of n samples.

    Args:
        n: Number of samples.
        size: Batch size B, or "full"; the last batch may be smaller.
        join_single: Whether a trailing batch of one sample joins the one before it, which
            BatchNorm needs.
    """
    starts = list(range(0, n, n if size == "full" else size))
    if join_single and len(starts) > 1 and n - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], n], strict=True))


def epochs_of(job: ClientJob, bounds: Bounds) -> Iterator[tuple[Tensor, npt.NDArray[np.int64]]]:
    """Yield for each local epoch the inputs [n, ...] and the order of the samples [n]."""
    x, n = job.data.x, len(job.data.y)
    generator = torch.Generator(x.device).manual_seed(job.torch_seed)
    for _ in range(job.epochs):
        order = np.arange(n) if len(bounds) == 1 else job.batches.permutation(n)
        yield job.augment(x, generator), order


def objective(rules: Rules, view: View, outputs: Outputs, batch: Batch) -> Tensor:
    """Return what is minimised: the criterion at logits / T, plus the penalties."""
    scaled = outputs.scaled(view.temperature) if view.temperature != 1 else outputs
    value = rules.criterion(view, scaled, batch) if rules.criterion else batch.loss(scaled.logits)
    for penalty in rules.penalties:
        value = value + penalty(view, outputs, batch)
    return value


def gradients_of(value: Tensor, points: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of a value; zeros where it does not depend on a point.

    `torch.autograd.grad` does the same after checks in Python, which took a tenth of a step of a
    small network; what it then calls is called here.
    """
    found = torch.autograd.Variable._execution_engine.run_backward(
        (value,),
        (torch.ones_like(value),),
        False,
        False,
        tuple(points),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    pairs = zip(found, points, strict=True)
    return [torch.zeros_like(p) if each is None else each for each, p in pairs]


class Sgd:
    """Steps of SGD on a list of tensors in place, with weight decay and (Nesterov) momentum."""

    def __init__(self, local: LocalSettings, lr: float) -> None:
        self._local, self._lr = local, lr
        self.velocity: list[Tensor] = []

    def decayed(self, gradients: list[Tensor], params: list[Tensor]) -> list[Tensor]:
        """Return the gradients with those of the weight decay added."""
        decay = self._local.weight_decay
        if not decay:
            return gradients
        return list(torch._foreach_add(gradients, params, alpha=decay))

    def step(self, params: list[Tensor], gradients: list[Tensor]) -> None:
        """Move the parameters down the gradients, or along the momentum."""
        local = self._local
        if local.momentum:
            if self.velocity:
                torch._foreach_mul_(self.velocity, local.momentum)
                torch._foreach_add_(self.velocity, gradients)
            else:
                self.velocity = [gradient.clone() for gradient in gradients]
            gradients = (
                list(torch._foreach_add(gradients, self.velocity, alpha=local.momentum))
                if local.nesterov
                else self.velocity
            )
        torch._foreach_add_(params, gradients, alpha=-self._lr)
