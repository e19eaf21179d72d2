"""Federated averaging in plain PyTorch: `torch.optim`, its schedules and clipping, in float64.

Batches are in the order that raysim draws; all else is torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from math import ceil
from typing import Any

import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import BatchSampler

import raysim
from raysim.numbers.seeds import stream
from raysim.testing.tasks import SmallNet, samples

SIZES = (52, 7, 21, 30)
"""Samples of each client; in batches of 4 the largest takes 26 steps in two epochs."""
BATCH = 4
Optimizers = dict[int, torch.optim.Optimizer]


def model() -> nn.Module:
    """A small network in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return SmallNet().double()


def task() -> raysim.Task:
    """Clients of unequal sizes."""
    return raysim.Task(model(), [samples(n, key) for key, n in enumerate(SIZES)], samples(50, 99))


def cohorts(result: raysim.Result) -> list[list[int]]:
    """Return the clients of each round, ascending."""
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row["round"], []).append(row["client"])
    return [sorted(found[number]) for number in sorted(found)]


def batches(
    number: int, client: int, epochs: int, size: int = BATCH, drop_last: bool = False
) -> Iterator[list[int]]:
    """Yield the rows of a client's batches, epoch after epoch, as torch's `DataLoader` has them.

    With `drop_last`, a client of fewer samples than a batch keeps them as its one batch.
    """
    draws, n = stream(0, "batches", number, 0, client), SIZES[client]
    for _ in range(epochs):
        order = range(n) if n <= size else draws.permutation(n).tolist()
        yield from BatchSampler(order, size, drop_last and n > size)


class Reference:
    """FedAvg of clients that train with an optimizer of torch.

    Attributes:
        make: Returns the optimizer of a module's parameters, given the learning rate.
        rates: The learning rate of each round.
        keep: Whether a client's optimizer goes on from round to round.
        clip_norm: Largest norm of the gradient, if there is one.
        steps: Local steps; None takes two epochs.
        batch: Batch size.
        drop_last: Whether an epoch's last batch is left out if it is smaller.
        tail: Share of the last steps whose models are averaged.
        loss: The loss to minimise.
    """

    def __init__(
        self,
        make: Callable[..., torch.optim.Optimizer],
        rates: Sequence[float],
        *,
        keep: bool = False,
        clip_norm: float | None = None,
        steps: int | None = None,
        batch: int = BATCH,
        drop_last: bool = False,
        tail: float = 0,
        loss: Callable[..., torch.Tensor] = F.cross_entropy,
    ) -> None:
        self.make, self.rates, self.keep = make, rates, keep
        self.clip_norm, self.steps, self.loss = clip_norm, steps, loss
        self.batching, self.tail = (batch, drop_last), tail
        self.samples = [samples(n, key) for key, n in enumerate(SIZES)]
        self.kept: dict[int, dict[str, Any]] = {}

    def run(self, cohorts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """Return the model's parameters after the rounds."""
        server = model()
        for number, cohort in enumerate(cohorts):
            total = sum(SIZES[client] for client in cohort)
            mean = {name: torch.zeros_like(p) for name, p in server.state_dict().items()}
            for client in cohort:
                local = self.train(deepcopy(server), number, client)
                for name, tensor in local.state_dict().items():
                    mean[name] += SIZES[client] / total * tensor
            server.load_state_dict(mean)
        return {name: p.detach() for name, p in server.state_dict().items()}

    def train(self, local: nn.Module, number: int, client: int) -> nn.Module:
        """Train a client in a round, from 0; return its model."""
        x, y = map(torch.as_tensor, self.samples[client])
        optimizer = self.make(local.parameters(), lr=self.rates[number])
        if client in self.kept:
            optimizer.load_state_dict(self.kept[client])
            for group in optimizer.param_groups:
                group["lr"] = self.rates[number]
        every = [*batches(number, client, 2 if self.steps is None else 100, *self.batching)]
        mean, taken = AveragedModel(local), every[: self.steps]
        for left, rows in zip(range(len(taken), 0, -1), taken, strict=True):
            optimizer.zero_grad()
            self.loss(local(x[rows].double()), y[rows]).backward()
            if self.clip_norm:
                nn.utils.clip_grad_norm_(local.parameters(), self.clip_norm)
            optimizer.step()
            if left <= ceil(self.tail * len(taken)):
                mean.update_parameters(local)
        if self.keep:
            self.kept[client] = deepcopy(optimizer.state_dict())
        return mean.module if self.tail else local
