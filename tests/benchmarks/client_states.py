"""Cost of personal heads: a population in which every client takes part once.

Usage: python -m tests.benchmarks.client_states [--clients 100000] [--cohort 1000] [--rounds N]
           [--out FOLDER]

Clients draw 60 samples of MNIST and take one step on them, in turn, with FedPer and then with
FedAvg, in one process. CPU seconds count, in which a machine's other load matters less: those of a
round at the start, and at the end, when the most clients have a state. The states' bytes are those
of their files, and those of the blocks that files and folders take on the disk.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import raysim
from tests.benchmarks.report import line, machine

AT_EITHER_END = 10
"""Rounds at the start and at the end whose median counts."""
BLOCK = 512
"""Bytes of a unit of `st_blocks`."""


class Timed(raysim.Listener):
    """Keeps the CPU time at the end of each round."""

    def __init__(self) -> None:
        self.ends = [process_time()]

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Note the time."""
        self.ends.append(process_time())

    def seconds(self) -> list[float]:
        """Return the seconds of each round but the first, which has the start."""
        pairs = zip(self.ends[1:], self.ends[2:], strict=False)
        return [after - before for before, after in pairs]


def run(method: str, out: Path, clients: int, cohort: int, rounds: int) -> list[float]:
    """Run a method; return the CPU seconds of its rounds."""
    given = {
        "method.name": method,
        "clients": clients,
        "fraction": cohort / clients,
        "rounds": rounds,
        "selection.name": "round_robin",
        "target_accuracy": None,
        "local.batch_size": "full",
        "evaluation.every": rounds,
        "engine.backend": "inline",
        "out": str(out),
    }
    timed = Timed()
    raysim.run(raysim.load_config("mnist-million", given), listener=timed)
    return timed.seconds()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--rounds", type=int, help="by default, until all have taken part")
    parser.add_argument("--out", type=Path, help="folder of the runs; none: one that is deleted")
    given = parser.parse_args()
    rounds = given.rounds or -(-given.clients // given.cohort)
    print(machine(), "", sep="\n")
    heading = ["method", "CPU s a round at the start", "at the end", "states", "bytes", "on disk"]
    print(line(heading))
    print(line(["---"] * len(heading)))
    with TemporaryDirectory() as scratch:
        for method in ("fedper", "fedavg"):
            out = (given.out or Path(scratch)) / method
            seconds = run(method, out, given.clients, given.cohort, rounds)
            ends = seconds[:AT_EITHER_END], seconds[-AT_EITHER_END:]
            entries = [*(out / "clients").rglob("*")]
            files = [path.stat().st_size for path in entries if path.is_file()]
            on_disk = BLOCK * sum(path.stat().st_blocks for path in entries)
            medians = [f"{statistics.median(each):.3g}" for each in ends]
            print(line([method, *medians, len(files), sum(files), on_disk]), flush=True)


if __name__ == "__main__":
    main()
