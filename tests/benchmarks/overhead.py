"""Round time of raysim over that of a bare PyTorch loop of the same local steps on all cores.

Usage: python -m tests.benchmarks.overhead [--rounds 30] [--models 2nn mnist-cnn-128]

Ten clients of 600 MNIST-shaped samples a round, E=1, B=10, SGD. The bare loop has one process a
core with one thread each, data and model resident, and divides the ten clients evenly; it does no
aggregation and no evaluation. Both take turns, a round each, so a drift of the machine's speed
meets both; the first rounds are left out.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import statistics
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import raysim
from raysim.core.data import MODELS
from raysim.core.seeds import stream

CLIENTS, SAMPLES, BATCH, LR = 10, 600, 10, 0.1
WARM_UP = 3
SHAPE = (1, 28, 28)


class Build:
    """Builds a registered model for MNIST's shape."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self) -> nn.Module:
        import workloads  # noqa: F401 - registers the models

        return MODELS.get(self.name)().build(SHAPE, 10)


def make_clients() -> list[tuple[Any, Any]]:
    generator = stream(0, "benchmark")
    return [
        (
            generator.random((SAMPLES, *SHAPE), dtype=np.float32),
            generator.integers(0, 10, SAMPLES),
        )
        for _ in range(CLIENTS)
    ]


def bare_worker(build: Build, clients: list[tuple[Any, Any]], pipe: Connection) -> None:
    """Train the given clients one after another whenever told to."""
    torch.set_num_threads(1)
    data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in clients]
    model = build()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    while pipe.recv():
        for all_x, all_y in data:
            model.load_state_dict(start)
            optimiser = torch.optim.SGD(model.parameters(), lr=LR)
            order = torch.randperm(SAMPLES)
            x, y = all_x[order], all_y[order]
            for first in range(0, SAMPLES, BATCH):
                optimiser.zero_grad()
                rows = slice(first, first + BATCH)
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimiser.step()
        pipe.send(True)


class BareLoop(raysim.Listener):
    """After each round of raysim, runs and times one round of the bare loop."""

    def __init__(self, build: Build, clients: list[tuple[Any, Any]]) -> None:
        context = mp.get_context("spawn")
        self.pipes = []
        self.seconds: list[float] = []
        cores = os.cpu_count() or 1
        for core in range(cores):
            here, there = context.Pipe()
            part = clients[core::cores]
            context.Process(target=bare_worker, args=(build, part, there), daemon=True).start()
            self.pipes.append(here)

    def round_done(self, row: Mapping[str, Any]) -> None:
        begun = perf_counter()
        for pipe in self.pipes:
            pipe.send(True)
        for pipe in self.pipes:
            pipe.recv()
        self.seconds.append(perf_counter() - begun)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(False)


def measure(model: str, rounds: int, folder: Path) -> tuple[float, float, float]:
    """Return median seconds a round of raysim and of the bare loop, and the median ratio."""
    build, clients = Build(model), make_clients()
    settings = raysim.load_config(
        "mnist-fedavg",
        {
            "fraction": 1.0,
            "rounds": rounds + WARM_UP,
            "target_accuracy": None,
            "local.epochs": 1,
            "local.batch_size": BATCH,
            "evaluation.every": 10_000,
            "checkpoint_every": 10_000,
            "out": str(folder / model),
        },
    )
    task = raysim.Task(model=build, clients=clients, test=clients[0])
    bare = BareLoop(build, clients)
    result = raysim.run(settings, task, bare)
    bare.close()
    ours = result.metrics["seconds"].to_pylist()[WARM_UP:]
    theirs = bare.seconds[WARM_UP:]
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return statistics.median(ours), statistics.median(theirs), ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--models", nargs="+", default=["2nn", "mnist-cnn-128"])
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {arguments.rounds} rounds each")
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            ours, bare, ratio = measure(model, arguments.rounds, Path(folder))
        print(f"{model}: raysim {ours:.3f} s a round, bare loop {bare:.3f} s, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
