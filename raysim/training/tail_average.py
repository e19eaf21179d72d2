"""Average of the parameters over the last local steps of clients (`local.tail_average`).

Source: Jain, Kakade, Kidambi, Netrapalli and Sidford, "Parallelizing Stochastic Gradient Descent
for Least Squares Regression", JMLR 18(223), 2018: the mean of the iterates after the first s.

    w_k <- 1/n * sum of the parameters after each of the last n steps      n = ceil(share * steps)

Buffers (BatchNorm statistics), the optimizer's state and the transforms' states are not averaged;
they keep their values after the last step.

Legend: K clients of a stack.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raysim.api.rules import LocalSteps, count_of
from raysim.numbers.tensors import as_real


class TailAverage:
    """Running mean of the parameters of a client, or of a stack of them, over their last steps.

    Args:
        params: The parameters [...] of one client, or [K, ...] of a stack; they change in place.
        steps: The steps that each client will take.
        share: The share of a client's steps that is averaged.
    """

    def __init__(self, params: Sequence[Tensor], steps: Sequence[int], share: float) -> None:
        self._params = [as_real(param) for param in params]
        self._means = [torch.zeros_like(param) for param in self._params]
        self._before = [n - max(count_of(LocalSteps(n) * share), 1) for n in steps]
        self._taken = [0] * len(steps)

    def after_step(self, active: Sequence[bool]) -> None:
        """Take in the parameters after a step that some clients took."""
        weights = [0.0] * len(active)
        for k, moved in enumerate(active):
            self._taken[k] += moved
            averaged = self._taken[k] - self._before[k]
            weights[k] = 1 / averaged if moved and averaged > 0 else 0.0
        if not any(weights):
            return
        alone = len(weights) == 1
        for mean, param in zip(self._means, self._params, strict=True):
            mean.lerp_(param, weights[0] if alone else _beside(weights, param))

    def settle(self) -> None:
        """Replace the parameters by their means."""
        for mean, param in zip(self._means, self._params, strict=True):
            param.copy_(mean)


def _beside(weights: Sequence[float], param: Tensor) -> Tensor:
    """Return weights [K] in a shape that broadcasts to parameters [K, ...]."""
    column = torch.tensor(weights, dtype=param.dtype, device=param.device)
    return column.view(-1, *(1,) * (param.dim() - 1))
