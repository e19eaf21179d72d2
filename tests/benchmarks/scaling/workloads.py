"""Components that only the scale benchmarks need: skewed clients, wide networks, no steps."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np
from pydantic import Field
from torch import nn

from raysim import Model, Partition, Passes, Round, ServerState, Split
from raysim.api.rules import Pass
from raysim.methods.fedavg import FedAvg
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import DrawnIndices, Indices
from raysim.workloads.models.parts import fully_connected
from raysim.workloads.models.stages import Staged

LEAST, MOST = 1, 5000


class LogNormal(Partition):
    """Clients of log-normal sizes, 1 to 5000 samples, drawn from all samples.

    Attributes:
        median: Median of the sizes.
        sigma: Standard deviation of their logarithm.
    """

    median: float = Field(default=60, gt=0)
    sigma: float = Field(default=1.5, ge=0)

    def split(self, data: Split, clients: int, seed: int) -> DrawnIndices:
        draws = stream(seed, "sizes").lognormal(np.log(self.median), self.sigma, clients)
        most = min(MOST, len(data))
        sizes = np.clip(draws.round(), LEAST, most).astype(np.int64)
        return DrawnIndices(clients, sizes, partial(_draw, len(data), sizes, seed))


def _draw(pool: int, sizes: Indices, seed: int, client: int) -> Indices:
    """Draw one client's samples from the pool."""
    generator = stream(seed, "drawn", client)
    return generator.choice(pool, size=int(sizes[client]), replace=False)


class Perceptron(Model):
    """Two hidden layers of `width` units: 200 is the 2NN."""

    width: int = Field(default=200, ge=1)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return Staged(
            features=nn.Sequential(nn.Flatten(), *fully_connected((prod(shape), self.width))),
            hidden=nn.Sequential(*fully_connected((self.width, self.width))),
            head=nn.Linear(self.width, classes),
        )


def parameters(width: int, inputs: int = 784, classes: int = 10) -> int:
    """Return the parameters of a `Perceptron`."""
    return (inputs + 1) * width + (width + 1) * width + (width + 1) * classes


class NoSteps(FedAvg):
    """FedAvg whose clients take no steps: what is left of local training is setting it up."""

    def round(self, now: Round, state: ServerState) -> Passes:
        reduced = yield Pass(now.cohort, state.groups, self.rules(), 0, now.lr)
        return ServerState({"model": reduced.means["model"]}), {}
