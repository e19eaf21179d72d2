"""Adaptive rules of the server, FedAdam, FedYogi and FedAdagrad: each coordinate has its own rate.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, "Adaptive Federated
Optimization", ICLR 2021, algorithm 2.

    Delta <- sum_k p_k w_k - w       p_k as in FedAvg
    m <- beta1 * m + (1 - beta1) * Delta
    w <- w + lr * m / (sqrt(v) + tau)        after the rule's own step of v

Without bias correction, as in the paper; m starts at 0, v at tau^2. m and v cover the trainable
parameters, complex ones as pairs of reals; buffers become the mean. Deviation: p_k follow
`weighting`, where algorithm 2 counts clients alike (weighting=uniform).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysim.api.server import ServerRule
from raysim.numbers.tensors import Groups, Tensors


class Adaptive(ServerRule):
    """Base of the adaptive rules, which differ in v."""

    keeps: ClassVar[tuple[str, ...]] = ("m", "v")

    lr: float = Field(default=0.01, gt=0, description="learning rate of the server")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the mean change m")
    tau: float = Field(default=1e-3, gt=0, description="degree of adaptivity; sqrt(v) starts here")

    @abstractmethod
    def next_v(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return v after a round with a squared change, of one tensor."""

    def init(self, params: Tensors) -> Groups:
        """Start with m at zero and v at tau^2."""
        start = {name: torch.full_like(w, self.tau**2) for name, w in params.items()}
        return {**super().init(params), "v": start}

    def step(self, params: Tensors, mean: Tensors, kept: Groups) -> tuple[Tensors, Groups]:
        """Take a step along m, of each coordinate by its v."""
        m, v, moved = {}, {}, {}
        for name, w in params.items():
            delta = mean[name] - w
            m[name] = self.beta1 * kept["m"][name] + (1 - self.beta1) * delta
            v[name] = self.next_v(kept["v"][name], delta**2)
            moved[name] = w + self.lr * m[name] / (v[name].sqrt() + self.tau)
        return moved, {"m": m, "v": v}


class Adam(Adaptive):
    """Adam on the server, along the mean change of the clients' models.

    Helps where gradients differ in scale, as with embeddings and rare classes, and where plain
    averaging is slow. Costs two more sets of parameters on the server and none on a client; bytes
    stay.

        v <- beta2 * v + (1 - beta2) * Delta^2
    """

    beta2: float = Field(default=0.99, ge=0, lt=1, description="decay of the mean square v")

    def next_v(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the running mean of the squared changes."""
        return self.beta2 * v + (1 - self.beta2) * squared


class Yogi(Adam):
    """Yogi on the server: Adam with steps of v that do not grow with v.

    Helps as Adam does, and where changes are sparse: a large v falls slowly, so that no rate jumps.
    Has Adam's costs.

        v <- v - (1 - beta2) * Delta^2 * sign(v - Delta^2)
    """

    def next_v(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return v moved towards the squared change."""
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)


class Adagrad(Adaptive):
    """Adagrad on the server: rates fall with all changes so far.

    Helps where changes are sparse, as of rare words, and needs no schedule. Has Adam's costs.

        v <- v + Delta^2
    """

    beta1: float = Field(default=0.0, ge=0, lt=1, description="decay of the mean change m")

    def next_v(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the sum of the squared changes."""
        return v + squared
