"""Memory and time of aggregations that see updates one by one.

Usage: python -m tests.benchmarks.aggregation [--clients 200] [--names mean median] [--resnet]

Runs a round of a network of 11.1 million parameters, or of a ResNet-18, on two actors with each
aggregation, and prints its seconds and the peaks of the private and of the whole resident memory of
driver and actors; the whole has shared memory, too.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import perf_counter
from typing import Any

import psutil
import torch

import raysim
from raysim.workloads.models.resnet import ResNet18
from tests.benchmarks.driver_memory import Net
from tests.tasks import long_settings

Memory = tuple[float, float]
"""Private and whole resident memory of a process, in GB."""


class Peaks(Thread):
    """Peaks of the memory of the driver and its actors, in GB, private and whole, while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done, self.driver, self.actors = Event(), (0.0, 0.0), (0.0, 0.0)

    def run(self) -> None:
        """Look ten times a second."""
        while not self.done.wait(0.1):
            self.driver = larger(self.driver, memory(os.getpid()))
            for process in psutil.process_iter(["name"]):
                if "ClientActor" in (process.info["name"] or ""):
                    self.actors = larger(self.actors, memory(process.pid))


def memory(pid: int) -> Memory:
    """Return the anonymous and the whole resident memory of a process; 0 where it has gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        private, whole = (status.partition(key)[2].split()[0] for key in ("RssAnon:", "VmRSS:"))
    except (OSError, IndexError):
        return 0.0, 0.0
    return int(private) / 1e6, int(whole) / 1e6


def larger(one: Memory, other: Memory) -> Memory:
    """Return the larger of two figures each."""
    return max(one[0], other[0]), max(one[1], other[1])


def task(clients: int, resnet: bool) -> raysim.Task:
    """Return a task of clients with two samples each."""
    shape: tuple[int, ...] = (3, 32, 32) if resnet else (1000,)
    build: Any = partial(ResNet18().build, shape, 10) if resnet else Net
    x, y = torch.randn(2, *shape).numpy(), torch.zeros(2, dtype=torch.int64).numpy()
    return raysim.Task(model=build, clients=[(x, y)] * clients, test=(x, y))


def measure(name: str, given: argparse.Namespace) -> tuple[float, Memory, Memory]:
    """Return the seconds of the last round, and the peaks of driver and actors."""
    rounds = given.rounds
    with TemporaryDirectory() as folder:
        more: dict[str, Any] = {"aggregation.name": name, "fraction": 1.0, "rounds": rounds}
        engine = {"engine.backend": "ray", "engine.actors": 2, "evaluation.every": rounds}
        settings = long_settings(Path(folder) / "run", **more, **engine, **{"local.epochs": 1})
        peaks = Peaks()
        peaks.start()
        begun = perf_counter()
        result = raysim.run(settings, task(given.clients, given.resnet))
        peaks.done.set()
        seconds = result.metrics["seconds"].to_pylist()
        print(f"{name}: all {perf_counter() - begun:.0f} s, rounds {seconds}", flush=True)
        return seconds[-1], peaks.driver, peaks.actors


def main() -> None:
    """Print a line per aggregation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--names", nargs="+", default=["mean", "median"])
    parser.add_argument("--resnet", action="store_true")
    given = parser.parse_args()
    for name in given.names:
        seconds, *peaks = measure(name, given)
        driver, actor = (f"{private:.2f} GB of {whole:.2f}" for private, whole in peaks)
        print(f"{name}: {seconds:.1f} s a round; driver {driver}, actor {actor}", flush=True)


if __name__ == "__main__":
    main()
