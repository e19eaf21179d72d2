"""Time of rounds with stages of the channel, against rounds without.

Usage: python -m tests.benchmarks.channel [--rounds 20] [--epochs 1] [--only topk-fed-back]

One case of `tests.benchmarks.compare` (the 2NN, 100 clients of 600 samples, cohorts of 10, B=10,
FedAvg), in one process. Runs take turns, a round each, so that what else the machine does falls on
all alike. Prints the median of a round in wall and in CPU time, each with the median of its ratios
to the plain round of the same turn, and the bytes that a client sends.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

import raysim
from tests.benchmarks import compare
from tests.benchmarks.peers.ours import settings_of, task_of
from tests.benchmarks.peers.work import make_data
from tests.benchmarks.report import line, machine
from tests.benchmarks.runner import WARM_UP

PLAIN = "plain"
CHANNELS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "clip": {"clip": {}},
    "topk": {"topk": {}},
    "topk-fed-back": {"error_feedback": {}, "topk": {}},
    "masks": {"masks": {}},
    "randk": {"randk": {}},
    "qsgd": {"qsgd": {}},
    "sign-fed-back": {"error_feedback": {}, "sign": {}},
    "int8": {"int8": {}},
    "low_rank": {"low_rank": {}},
}


def measure(names: Sequence[str], rounds: int, epochs: int) -> dict[str, list[Any]]:
    """Return wall seconds, CPU seconds and bytes of rounds that take turns, by channel."""
    case = replace(compare.CASES[0], epochs=epochs)
    found: dict[str, list[Any]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        make_data(case, Path(folder))
        task, runs = task_of(case, Path(folder)), {}
        for name in names:
            engine = {"channel": CHANNELS[name], "engine.backend": "inline"}
            runs[name] = raysim.rounds(settings_of(case, Path(folder) / name, **engine), task)
            ends.callback(runs[name].close)
        for number in range(WARM_UP + rounds):
            for name, run in runs.items():
                begun = process_time()
                row = next(run)
                if number >= WARM_UP:
                    cpu = process_time() - begun
                    found[name].append((row["seconds"], cpu, row["bytes_up"] / case.cohort))
    return found


def main() -> None:
    """Print a line per channel."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=[*CHANNELS], default=[*CHANNELS])
    given = parser.parse_args()
    names = [PLAIN, *(name for name in given.only if name != PLAIN)]
    found = measure(names, given.rounds, given.epochs)
    plain = np.array(found[PLAIN])  # [rounds, 3]
    print(machine(), end="\n\n")
    print(line(["channel", "wall ms", "of plain", "CPU ms", "of plain", "bytes a client"]))
    print(line(["---"] * 6))
    for name, rows in found.items():
        (wall, cpu, sent), ratios = np.median(rows, axis=0), np.median(rows / plain, axis=0)
        cells = [f"{1e3 * wall:.0f}", f"{ratios[0]:.2f}", f"{1e3 * cpu:.0f}", f"{ratios[1]:.2f}"]
        print(line([name, *cells, f"{sent:.0f}"]))


if __name__ == "__main__":
    main()
