"""Memory of the driver, by nodes and by the sums that reach it.

Usage: python -m tests.benchmarks.driver_memory NODES CLIENTS [CORES]

Starts a Ray of NODES nodes on this machine with CORES workers each, which have a foreman if there
are several. A worker or foreman hands over its sum after every chunk of clients, as if it were as
many actors. Prints after each of three rounds of all CLIENTS the sums so far, and the peaks of the
driver's private memory and of the pages of Ray's object store that it has mapped, beside those
before the first round, and the private memory of the workers. Before that it prints what Ray itself
takes on a head with dashboard and autoscaler.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any
from unittest import mock

import psutil
import torch
from torch import nn

import raysim
from raysim.execution.partial_sum import PartialSum
from raysim.execution.scheduling.holding import AT_ONCE
from tests.cluster import head
from tests.faults.processes import cluster
from tests.tasks import long_settings

KINDS = {"private": "RssAnon", "store": "RssShmem"}
HEAD_SECONDS = 30.0
"""Seconds after which an idle head has started all that it starts."""
MERGE = PartialSum.merge
MERGED: Counter[str] = Counter()


def merge(total: PartialSum, other: PartialSum) -> None:
    """Merge as `PartialSum.merge`, and count."""
    MERGED["sums"] += other.sum is not None
    MERGE(total, other)


class Net(nn.Module):
    """Network of 11.1 million parameters that trains quickly."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(1000, 11000), nn.Linear(11000, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(x)))


class Peaks(raysim.Listener):
    """Watches this process, and prints its peaks after each round."""

    def __init__(self) -> None:
        self._peaks = dict.fromkeys(KINDS, 0.0)
        Thread(target=self._watch, daemon=True).start()

    def started(self, run: raysim.Started) -> None:
        self._print("before")

    def round_done(self, row: Any) -> None:
        self._print(f"round {row['round']}: {MERGED['sums']} sums")
        print("workers:", *(f"{size:.0f} MiB" for size in private("ray::ClientActor")), flush=True)

    def _print(self, when: str) -> None:
        print(when, *(f"{kind} {peak:.0f} MiB" for kind, peak in self._peaks.items()), flush=True)
        self._peaks = dict.fromkeys(KINDS, 0.0)

    def _watch(self) -> None:
        while True:
            text = Path("/proc/self/status").read_text()
            for kind, name in KINDS.items():
                found = re.search(rf"{name}:\s+(\d+)", text)
                assert found
                self._peaks[kind] = max(self._peaks[kind], int(found[1]) / 1024)
            sleep(0.02)


def private(name: str = "") -> list[float]:
    """Return the private memory of the processes of a name that this one started, in MiB."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if name in " ".join(process.cmdline()):
                found.append(process.memory_full_info().uss / 2**20)
    return found


def head_memory(folder: Path) -> float:
    """Return what Ray's processes take on an idle head with dashboard and autoscaler, in MiB."""
    workers = {"resources": {"CPU": 1}, "min_workers": 0, "max_workers": 1}
    with head.started(folder, cores=0, gpus=0, workers=workers, version=2):
        sleep(HEAD_SECONDS)
        return sum(private())


def samples(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 1000), torch.randint(10, (rows,))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", type=int)
    parser.add_argument("clients", type=int)
    parser.add_argument("cores", type=int, nargs="?", default=2)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    clients = [samples(4) for _ in range(arguments.clients)]
    task = raysim.Task(model=Net, clients=clients, test=samples(20))
    engine = {"engine.backend": "ray", "engine.actors": arguments.nodes * arguments.cores}
    with tempfile.TemporaryDirectory() as folder:
        print(f"head: {head_memory(Path(folder)):.0f} MiB", flush=True)
    peaks = Peaks()
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(arguments.nodes, 1500 * 2**20, arguments.cores) as nodes,
        mock.patch.dict(os.environ, RAY_ADDRESS=nodes.address),
        mock.patch("raysim.execution.pool.ray_pool.hold_seconds", lambda *_: AT_ONCE),
        mock.patch.object(PartialSum, "merge", merge),
    ):
        settings = long_settings(Path(folder) / "run", rounds=3, fraction=1.0, **engine)
        raysim.run(settings, task, peaks)


if __name__ == "__main__":
    main()
