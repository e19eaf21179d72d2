"""Time of rounds with stages of the channel, against rounds without.

Usage: python -m tests.benchmarks.channel [--rounds 20] [--epochs 1] [--backend inline|ray]

One case of `tests.benchmarks.compare` (the 2NN, 100 clients of 600 samples, cohorts of 10, B=10,
FedAvg). Runs take turns, a round each, so that what else the machine does falls on all alike.
Prints the median seconds of a round, the median of the ratios to the plain round of the same turn,
and the bytes that a client sends.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import raysim
from tests.benchmarks import compare
from tests.benchmarks.peers.ours import settings_of, task_of
from tests.benchmarks.peers.work import make_data
from tests.benchmarks.report import line, machine
from tests.benchmarks.runner import WARM_UP

CHANNELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip": {"clip": {}},
    "topk": {"topk": {}},
    "topk, fed back": {"error_feedback": {}, "topk": {}},
    "randk": {"randk": {}},
    "qsgd": {"qsgd": {}},
    "sign, fed back": {"error_feedback": {}, "sign": {}},
    "int8": {"int8": {}},
    "low_rank": {"low_rank": {}},
}


def measure(rounds: int, epochs: int, backend: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of rounds that take turns, by channel."""
    case = replace(compare.CASES[0], epochs=epochs)
    engine = {"engine.backend": backend, "engine.actors": 1, "engine.cpus_per_actor": 0.1}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CHANNELS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        make_data(case, Path(folder))
        task, runs = task_of(case, Path(folder)), {}
        for name, channel in CHANNELS.items():
            out = Path(folder) / name.replace(", ", "-").replace(" ", "-")
            runs[name] = raysim.rounds(settings_of(case, out, channel=channel, **engine), task)
            ends.callback(runs[name].close)
        for number in range(WARM_UP + rounds):
            for name, run in runs.items():
                row = next(run)
                if number >= WARM_UP:
                    found[name].append(row)
    return found


def main() -> None:
    """Print a line per channel."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--backend", choices=["inline", "ray"], default="inline")
    given = parser.parse_args()
    found = measure(given.rounds, given.epochs, given.backend)
    plain = np.array([row["seconds"] for row in found["plain"]])
    print(machine(), end="\n\n")
    print(line(["channel", "ms a round", "of a plain round", "bytes a client"]))
    print(line(["---"] * 4))
    for name, rows in found.items():
        seconds = np.array([row["seconds"] for row in rows])
        cells = [f"{1e3 * np.median(seconds):.0f}", f"{np.median(seconds / plain):.2f}"]
        print(line([name, *cells, str(rows[-1]["bytes_up"] // compare.CASES[0].cohort)]))


if __name__ == "__main__":
    main()
