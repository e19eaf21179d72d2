"""Seconds a round of several trials, one by one and as one stack, on a GPU where there is one.

Usage: python -m tests.benchmarks.trials [--network 2nn] [--trials 1 4 16 64] [--clients 10]
           [--vectorize 0 10] [--samples 300] [--rounds 5] [--out FILE]

The trials differ in their learning rate, and each trains all its clients on random samples (B=10,
E=1) in each round. One by one, a trial is a run as `raysim run` has it, with so many of its clients
in a stack (`engine.vectorize`; 0 trains them one at a time); as one stack, each stack also has
those of all other trials, as with `stack` in a study. Wall-clock medians over the rounds but the
first two, in which steps are recorded; what is said is the time of a round of all trials.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

import raysim
from raysim.execution.lockstep import Lockstep
from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.report import line, machine

WARM_UP = 2
LEAST_LR, MOST_LR = 0.005, 0.02
NEVER = 10**6


@dataclass(frozen=True)
class Work:
    """The work of a round of a trial: clients of so many samples each."""

    network: str
    clients: int
    samples: int
    rounds: int

    def task(self) -> raysim.Task:
        """Return clients with random samples."""
        network, generator = NETWORKS[self.network], np.random.default_rng(0)
        clients = [network.samples(self.samples, generator) for _ in range(self.clients)]
        return raysim.Task(network.build, clients, network.samples(10, generator))

    def settings(self, folder: Path, trials: int, vectorize: int) -> list[raysim.Settings]:
        """Return the settings of trials, which differ in their learning rate."""
        common: dict[str, Any] = {
            "clients": self.clients,
            "fraction": 1.0,
            "rounds": WARM_UP + self.rounds,
            "target_accuracy": None,
            "evaluation.every": NEVER,
            "checkpoint_every": NEVER,
            "engine.backend": "inline",
            "engine.gpus_per_actor": float(torch.cuda.is_available()),
            "engine.vectorize": vectorize,
        }
        rates = np.linspace(LEAST_LR, MOST_LR, trials).tolist()
        own = [{"local.lr": lr, "out": str(folder / f"{n}")} for n, lr in enumerate(rates)]
        return [raysim.load_config("mnist-fedavg", common | each) for each in own]


def one_by_one(work: Work, settings: Sequence[raysim.Settings]) -> float:
    """Return the seconds of a round of all trials, each a run of its own."""
    total = 0.0
    for each in settings:
        with raysim.rounds(each, work.task()) as rounds:
            total += _median(iter(partial(next, rounds, None), None))
    return total


def as_one_stack(work: Work, settings: Sequence[raysim.Settings]) -> float:
    """Return the seconds of a round of all trials in lockstep.

    Raises:
        RuntimeError: they were not stacked.
    """
    runs: Lockstep[Any] = Lockstep(len(settings))

    for number, each in enumerate(settings):
        runs.start(number, each.engine, raysim.steps(each, work.task()))
    found = _median(iter(runs.advance, {}))
    if runs.notes:
        raise RuntimeError("; ".join(runs.notes))
    return found


def _median(rounds: Iterator[Any]) -> float:
    """Return the median seconds of rounds, of those after the warm-up."""
    ends = [perf_counter()]
    for _ in rounds:
        ends.append(perf_counter())
    seconds = np.diff(ends)[WARM_UP:]
    return float(statistics.median(seconds.tolist()))


def table(work: Work, trials: Sequence[int], vectorize: Sequence[int]) -> list[str]:
    """Measure numbers of trials and of clients in a stack; return the lines of a table."""
    names = ["trials", "vectorize", "one by one, s", "as one stack, s", "throughput"]
    lines = [line(names), line(["---"] * len(names))]
    for count in trials:
        for size in vectorize:
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                apart = one_by_one(work, work.settings(place / "apart", count, size))
                stacked = as_one_stack(work, work.settings(place / "stacked", count, size))
            cells = f"{apart:.3g}", f"{stacked:.3g}", f"{apart / stacked:.2f}"
            lines.append(line([count, size, *cells]))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=[*NETWORKS], default="2nn")
    parser.add_argument("--trials", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--vectorize", nargs="+", type=int, default=[0, 10])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="file for the table, beside the terminal")
    given = parser.parse_args()
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
    work = Work(given.network, given.clients, given.samples, given.rounds)
    found = [f"{machine()} {device}.", "", *table(work, given.trials, given.vectorize), ""]
    print("\n".join(found))
    if given.out:
        given.out.write_text("\n".join(found))


if __name__ == "__main__":
    main()
