"""Seconds a round of raysim and of PFLlib's own loop on the same local steps, by method.

Usage: python -m tests.benchmarks.personal CLONE [--network mnist-cnn-128] [--clients 20]
    [--samples 300] [--rounds 10] [--minutes 3] [--methods fedavg ditto fedrep]

CLONE is a clone of github.com/TsingZ0/PFLlib; its needs are in the extra `dev`. Prints a table in
Markdown: medians, and the ratio to PFLlib with one thread, as the median over sweeps in which each
trains a round.

What is equal: network, samples, batches of ten (all of them whole), an epoch of the global model
and of the personal one (FedRep: of the head, then of the body), the learning rate; all clients
join; no evaluation after the first round. PFLlib has one process, which reads a client's file for
each loader, with one thread and, as by torch's default, with one a core; raysim has an actor a core
and writes its tables, events and the clients' states besides.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks.peers.work import Case, make_data
from tests.benchmarks.report import cell, heading, line, machine
from tests.benchmarks.runner import Runner, command_of, take_turns

SYSTEMS = ("pfllib", "pfllib, a thread a core", "raysim")
OWN: dict[str, dict[str, object]] = {
    "fedavg": {},
    "ditto": {"method.lam": 0.01},
    "fedrep": {"method.head_epochs": 1, "method.body_epochs": 1},
}
"""raysim's settings of a method, as PFLlib has them."""


def measure(case: Case, clone: str, rounds: int, minutes: float) -> dict[str, list[float]]:
    """Return the seconds of the rounds of both."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        make_data(case, Path(folder))
        runners: dict[str, Runner] = {}
        for title in SYSTEMS:
            system = title.partition(",")[0]
            theirs = {"clone": clone, "threads": os.cpu_count() if "thread a" in title else 1}
            settings = OWN[case.method] if system == "raysim" else theirs
            command, folder_of = command_of(system, Path(sys.executable)), Path(folder)
            runners[title] = Runner(
                title, command, case, folder_of, settings, suspended=system == "raysim"
            )
            ends.callback(runners[title].close)
        return take_turns(runners, rounds, 60 * minutes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clone", type=Path, help="folder of a clone of PFLlib")
    parser.add_argument("--network", default="mnist-cnn-128")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--samples", type=int, default=300, help="of a client")
    parser.add_argument("--rounds", type=int, default=10, help="that count, at most")
    parser.add_argument("--minutes", type=float, default=3, help="of a method, about")
    parser.add_argument("--methods", nargs="+", choices=OWN, default=[*OWN])
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    print(f"{machine()}.\n")
    print(heading("method", "clients x samples", *SYSTEMS, "rounds"))
    for method in options.methods:
        size = (options.clients, options.samples, options.clients)
        case = Case(options.network, *size, lr=0.005, method=method)
        seconds = measure(case, str(options.clone.absolute()), options.rounds, options.minutes)
        cells = [cell(system, "pfllib", [seconds]) for system in SYSTEMS]
        work = f"{case.network}, {case.clients} x {case.samples}, B={case.batch}, E={case.epochs}"
        print(line([method, work, *cells, len(seconds["raysim"])]), flush=True)


if __name__ == "__main__":
    main()
