"""The work of the GPU benchmark: networks, sizes, systems, and settings of raysim's runs.

A system is a way to train the clients of a case. All clients of a case have as many samples, drawn
from one pool of random images, which stays on the device; a round trains one stack in each actor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from raysim import Model, Partition, Split
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import DrawnIndices, Indices
from raysim.samples.data import Dataset, Progress
from raysim.training.stacked import cuda_graphs
from raysim.workloads.datasets.cifar import Cifar10
from raysim.workloads.datasets.prepared import prepare_once
from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.peers.work import ROUNDS, Case

MODULE = "tests.benchmarks.gpu.work"
POOL = 2000
"""Samples from which those of all clients are drawn."""
LR = 0.01
NEVER = 10**9
REPLAYS = cuda_graphs.MIN_REPLAYS


@dataclass(frozen=True)
class Sizes:
    """Sizes of the benchmark.

    Attributes:
        samples: Samples of a client.
        batch: Samples of a batch.
        stacks: Clients trained at once; the first is 1.
        alone: Clients of a round where they are trained one at a time.
        processes: Processes of pfl.
    """

    samples: int
    batch: int
    stacks: tuple[int, ...]
    alone: int
    processes: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Return the local steps of a client in a round."""
        return math.ceil(self.samples / self.batch)


FULL = Sizes(samples=300, batch=10, stacks=(1, 8, 32, 128), alone=10, processes=(1, 2, 5))
TINY = Sizes(samples=4, batch=2, stacks=(1, 2), alone=1, processes=(1,))
"""Sizes of a CUDA machine, and those that show only that everything works."""


@dataclass(frozen=True)
class System:
    """A system, and its place in the matrix.

    Attributes:
        name: "raysim", "bare", "bare, CUDA graph" or "pfl".
        workers: Processes of pfl; raysim and the bare loops have one.
        stack: Clients trained at once in each of them.
        graphs: Whether repeated steps are recorded as CUDA graphs.
        bf16: Whether forward passes run in bfloat16.
    """

    name: str
    workers: int = 1
    stack: int = 1
    graphs: bool = False
    bf16: bool = False

    def case(self, network: str, sizes: Sizes) -> Case:
        """Return the work of a round: a stack, or a few clients one at a time."""
        cohort = self.stack if self.stack > 1 else sizes.alone
        return Case(network, cohort, sizes.samples, cohort, sizes.batch, lr=LR)

    def overrides(self, case: Case, *, device: bool) -> dict[str, Any]:
        """Return raysim's settings for a case."""
        own = {
            "engine.backend": "inline",
            "engine.gpus_per_actor": 1.0,
            "dataset.name": f"{MODULE}:Noise",
            "dataset.network": case.network,
            "partition.name": f"{MODULE}:Drawn",
            "partition.samples": case.samples,
            "model.name": f"{MODULE}:Built",
            "model.network": case.network,
            "model.graphs": self.graphs,
            "clients": case.clients,
            "fraction": 1.0,
            "local.batch_size": case.batch,
            "local.epochs": case.epochs,
            "local.lr": case.lr,
        }
        return {**unevaluated(), **own, **self.engine(device=device)}

    def engine(self, *, device: bool) -> dict[str, Any]:
        """Return the settings of a run's engine but for its workers."""
        settings: dict[str, Any] = {
            "engine.vectorize": self.stack if self.stack > 1 else 0,
            "engine.precision": "bf16" if self.bf16 else "fp32",
        }
        return settings if device else {**settings, "engine.gpus_per_actor": 0.0}


def unevaluated() -> dict[str, Any]:
    """Return settings of a run that trains until it is ended, and does nothing else."""
    return {
        "rounds": ROUNDS,
        "target_accuracy": None,
        "evaluation.every": ROUNDS,
        "checkpoint_every": ROUNDS,
    }


def inline_systems(sizes: Sizes, *, bf16: bool) -> list[System]:
    """Return raysim's systems, in one process."""
    return [
        System("raysim", 1, stack, graphs, bf16)
        for stack in sizes.stacks
        for graphs in (True, False)
    ]


def switch_graphs(*, on: bool) -> None:
    """Have this process record repeated steps as CUDA graphs, or take all as they are."""
    cuda_graphs.MIN_REPLAYS = REPLAYS if on else NEVER


class Noise(Dataset):
    """Random images of the shape that a network takes.

    Attributes:
        network: The network, one of the comparison's.
    """

    network: str

    @property
    def shape(self) -> tuple[int, ...]:
        return NETWORKS[self.network].shape

    @property
    def classes(self) -> int:
        return NETWORKS[self.network].classes

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        def draw(work: Path) -> dict[str, Split]:
            generator = np.random.default_rng(0)
            counts = {"train": POOL, "test": 10}
            return {
                name: Split(*NETWORKS[self.network].samples(count, generator))
                for name, count in counts.items()
            }

        variant = "x".join(map(str, self.shape))
        return prepare_once(root / "noise", ("train", "test"), draw, progress, variant)


class Drawn(Partition):
    """Clients whose samples are drawn from all.

    Attributes:
        samples: Samples of a client.
        unequal: Whether that is a mean, see `sizes_of`.
    """

    samples: int
    unequal: bool = False

    def split(self, data: Split, clients: int, seed: int) -> DrawnIndices:
        sizes = sizes_of(clients, self.samples, unequal=self.unequal)
        return DrawnIndices(clients, sizes, partial(_draw, len(data), sizes, seed))


def sizes_of(clients: int, samples: int, *, unequal: bool) -> Indices:
    """Return the samples of clients [K]: as many each, or evenly from half to one and a half."""
    least = samples // 2 if unequal else samples
    return np.linspace(least, 2 * samples - least, clients).astype(np.int64)


def _draw(pool: int, sizes: Indices, seed: int, client: int) -> Indices:
    return stream(seed, "drawn", client).choice(pool, size=sizes[client], replace=False)


class Built(Model):
    """A network of the comparison; the process that builds it records graphs, or does not.

    Attributes:
        network: Its name.
        graphs: Whether steps are recorded.
    """

    network: str
    graphs: bool

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        switch_graphs(on=self.graphs)
        return NETWORKS[self.network].build()


class RandomCifar10(Cifar10):
    """Random images in place of CIFAR-10's, decoded and altered alike.

    Attributes:
        samples: Samples of the training set, of which the test set has a fifth.
    """

    samples: int = 50_000

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        def draw(work: Path) -> dict[str, Split]:
            generator = np.random.default_rng(0)
            counts = {"train": self.samples, "test": self.samples // 5}
            return {
                name: Split(
                    generator.integers(0, 256, (count, *self.shape), np.uint8),
                    generator.integers(0, self.classes, count),
                )
                for name, count in counts.items()
            }

        return prepare_once(
            root / "noise", ("train", "test"), draw, progress, f"cifar10-{self.samples}"
        )


def device_of_benchmark() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
