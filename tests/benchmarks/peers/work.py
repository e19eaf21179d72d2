"""The work that all systems are given: a case, its data, and the local steps of one client.

Legend: K clients, n samples of each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.format import open_memmap
from torch import Tensor, nn

from tests.benchmarks.peers.networks import NETWORKS, PRETRAINED, Network

ROUNDS = 1_000_000
"""Rounds that a system is told to train; the comparison ends it before."""
METHODS = ("fedavg", "fedprox", "scaffold")
FP32 = nullcontext()
MU = 0.01
"""FedProx's mu."""


@dataclass(frozen=True)
class Case:
    """One line of the comparison: `cohort` of `clients` a round, each with `samples` samples."""

    network: str
    clients: int
    samples: int
    cohort: int
    batch: int = 10
    epochs: int = 1
    lr: float = 0.1
    method: str = "fedavg"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        return cls(**json.loads(text))

    def build(self) -> nn.Module:
        """Build the network with new weights."""
        return network_of(self).build()


def network_of(case: Case) -> Network:
    """Return the network of a case, and its samples."""
    return {**NETWORKS, **PRETRAINED}[case.network]


def travelling(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model that are sent: all but frozen parameters."""
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    return {name: t for name, t in model.state_dict().items() if name not in frozen}


def make_data(case: Case, folder: Path) -> None:
    """Write the inputs [K, n, ...] and labels [K, n] of a case."""
    network = network_of(case)
    first_x, _ = network.samples(1, np.random.default_rng(0))
    size = (case.clients, case.samples)
    x = open_memmap(folder / "x.npy", "w+", first_x.dtype, (*size, *network.shape))
    y = open_memmap(folder / "y.npy", "w+", np.int64, size)
    for client in range(case.clients):
        x[client], y[client] = network.samples(case.samples, np.random.default_rng([0, client]))


def open_data(folder: Path) -> tuple[Tensor, Tensor]:
    """Map the inputs [K, n, ...] and labels [K, n]; processes share their pages."""
    x, y = (np.load(folder / name, mmap_mode="c") for name in ("x.npy", "y.npy"))
    return torch.from_numpy(x), torch.from_numpy(y)


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    case: Case,
    precision: AbstractContextManager[Any] = FP32,
) -> None:
    """Take the local steps of one client as one writes them in plain PyTorch.

    SCAFFOLD's control variates are the first weights, so that nothing else is to be kept. Forward
    passes run in `precision`, entered for each: autocast keeps its copies of weights to its end.
    """
    model.train()
    start = []
    if case.method != "fedavg":
        start = [parameter.detach().clone() for parameter in model.parameters()]
    optimiser = torch.optim.SGD(model.parameters(), lr=case.lr)
    for _ in range(case.epochs):
        order = torch.randperm(len(y))
        shuffled_x, shuffled_y = x[order], y[order]
        for first in range(0, len(y), case.batch):
            rows = slice(first, first + case.batch)
            optimiser.zero_grad()
            with precision:
                loss = F.cross_entropy(model(shuffled_x[rows]), shuffled_y[rows])
            if case.method == "fedprox":
                loss = loss + proximal(model.parameters(), start)
            loss.backward()
            if case.method == "scaffold":
                control(model.parameters(), start)
            optimiser.step()


def proximal(parameters: Iterable[Tensor], start: Iterable[Tensor]) -> Tensor:
    """Return FedProx's term of the loss."""
    pairs = zip(parameters, start, strict=True)
    return MU / 2 * torch.stack([(p - q).square().sum() for p, q in pairs]).sum()


def control(parameters: Iterable[Tensor], variates: Iterable[Tensor]) -> None:
    """Add SCAFFOLD's c - c_k to the gradients; the same tensors stand for both."""
    for p, c in zip(parameters, variates, strict=True):
        assert p.grad is not None
        p.grad.sub_(c, alpha=1e-3).add_(c, alpha=2e-3)
