"""Memory and time of aggregations that see updates one by one.

Usage: python -m tests.benchmarks.aggregation [--clients 200] [--names mean median]

Runs a round of a network of 11.1 million parameters on two actors with each aggregation, and prints
its seconds, those outside of training, and the peaks of the private memory of driver and actors.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import perf_counter
from typing import Any

import psutil
import torch

import raysim
from tests.benchmarks.driver_memory import Net
from tests.tasks import make_settings


class Peaks(Thread):
    """Peaks of the private memory of the driver and its actors, in GB, while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done, self.driver, self.actors = Event(), 0.0, 0.0

    def run(self) -> None:
        """Look ten times a second."""
        while not self.done.wait(0.1):
            self.driver = max(self.driver, private(os.getpid()))
            for process in psutil.process_iter(["name"]):
                if "ClientActor" in (process.info["name"] or ""):
                    self.actors = max(self.actors, private(process.pid))


def private(pid: int) -> float:
    """Return the anonymous resident memory of a process in GB; 0 where it has gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    return int(status.partition("RssAnon:")[2].split()[0]) / 1e6


def task(clients: int) -> raysim.Task:
    """Return a task of clients with two samples each."""
    x, y = torch.randn(2, 1000).numpy(), torch.zeros(2, dtype=torch.int64).numpy()
    return raysim.Task(model=Net, clients=[(x, y)] * clients, test=(x, y))


def measure(name: str, clients: int, rounds: int) -> tuple[float, float, float]:
    """Return the seconds of the last round, and the peaks of driver and actors in GB."""
    with TemporaryDirectory() as folder:
        more: dict[str, Any] = {"aggregation.name": name, "fraction": 1.0, "rounds": rounds}
        engine = {"engine.backend": "ray", "engine.actors": 2, "evaluation.every": rounds}
        settings = make_settings(Path(folder) / "run", **more, **engine, **{"local.epochs": 1})
        peaks = Peaks()
        peaks.start()
        begun = perf_counter()
        result = raysim.run(settings, task(clients))
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
    given = parser.parse_args()
    for name in given.names:
        seconds, driver, actors = measure(name, given.clients, given.rounds)
        print(f"{name}: {seconds:.1f} s a round; driver {driver:.2f} GB, actor {actors:.2f} GB")


if __name__ == "__main__":
    main()
