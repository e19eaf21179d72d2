"""Seconds a round of raysim, a bare PyTorch loop, Flower and pfl on the same local steps.

Usage: python -m tests.benchmarks.compare [--workloads 2nn ...] [--cohorts 10 100 1000]
    [--systems raysim bare ...] [--method fedavg] [--rounds 20] [--repeats 3] [--minutes 3]
    [--environments DIR]

Prints a table in Markdown, a line per case: median seconds a round and, in brackets, the ratio to
the bare loop (median over sweeps; with several repeats also the least and the greatest). Progress
goes to standard error. The first call makes the peers' environments.

What is equal: the network, built by the same code; the data, one file mapped by all; cohort, batch
size, epochs and learning rate; one thread a process and as many processes as cores; torch; no
evaluation, no checkpoint. Everybody's Ray gives its workers niceness 0. A round is all that happens
from one to the next: choosing and sending, training, averaging, and what the system records.

What is each one's own:
- bare: no more than the local steps, divided evenly (`peers/bare.py`). `bare-channels-last` is the
  same with plain CNNs in channels-last, which raysim chooses by itself on a CPU: compare raysim
  with it for the engine's own cost, and with `bare` for what a user gets.
- raysim: defaults, on Ray; it writes its tables and TensorBoard events. `raysim-bf16` is the same
  with `engine.precision=bf16`, for networks with convolutions at B=50 or more: where a batch is
  small, or nothing is multiplied by much, casting takes what bf16 saves.
- Flower: `client_resources` of one CPU (two by default), model and data resident in the actors
  (its tutorial makes both anew for every client), no DataLoader, no evaluation. It looks for
  messages and replies every 0.1 s. It holds all updates of a round at once: cases for which memory
  would not do are left out.
- pfl: one process a core under torchrun, data in memory as tensors, as its guide to fast
  simulations says. It takes batches in the order of the data, without shuffling, and averages
  parameters without BatchNorm's statistics.

`--method fedprox` or `scaffold` has every system train by that method, the bare loop with its
arithmetic too; Flower has no SCAFFOLD.

Cases: what is compared is the cost a round beside the local steps, so networks whose steps are
slow have fewer samples a client. `pfl-cifar-cnn` has pfl-research's CIFAR-10 setting.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from platformdirs import user_cache_path

from tests.benchmarks.environments import PEERS, make, versions
from tests.benchmarks.peers.networks import NETWORKS, convolves, plain_cnn
from tests.benchmarks.peers.work import METHODS, Case, make_data
from tests.benchmarks.report import Seconds, cell, line, machine
from tests.benchmarks.runner import ON_RAY, Runner, command_of, take_turns

SYSTEMS: dict[str, tuple[str, dict[str, str]]] = {
    "bare": ("bare", {}),
    "bare-channels-last": ("bare", {"layout": "channels_last"}),
    "raysim": ("raysim", {}),
    "raysim-bf16": ("raysim", {"engine.precision": "bf16"}),
    "flower": ("flower", {}),
    "pfl": ("pfl", {}),
}
"""What runs a system, and its settings."""
CASES = (
    Case("2nn", clients=100, samples=600, cohort=10),
    Case("2nn", clients=100, samples=600, cohort=100),
    Case("2nn", clients=1000, samples=60, cohort=1000),
    Case("mnist-cnn-128", clients=100, samples=600, cohort=10),
    Case("mnist-cnn-128", clients=100, samples=600, cohort=10, batch=50),
    Case("mnist-cnn-128", clients=100, samples=60, cohort=100),
    Case("mnist-cnn-128", clients=1000, samples=20, cohort=1000),
    Case("cifar-cnn-5", clients=100, samples=200, cohort=10),
    Case("cifar-cnn-5", clients=100, samples=20, cohort=100),
    Case("cifar-cnn-5", clients=1000, samples=10, cohort=1000),
    Case("resnet18", clients=100, samples=100, cohort=10),
    Case("resnet18", clients=100, samples=20, cohort=100),
    Case("resnet18", clients=1000, samples=10, cohort=1000),
    Case("char-lstm", clients=100, samples=100, cohort=10),
    Case("char-lstm", clients=100, samples=20, cohort=100),
    Case("char-lstm", clients=1000, samples=10, cohort=1000),
    Case("pfl-cifar-cnn", clients=1000, samples=50, cohort=50),
)
COPIES = 3
"""Of every update of a round that Flower was seen to hold: as sent, as received, as averaged."""
BF16_BATCH = 50
"""The smallest batch for bf16 to be worth it."""


def suits(system: str, case: Case) -> bool:
    """Say whether a system can take a case, and whether its settings make sense there."""
    model = case.build()
    if system == "bare-channels-last":
        return plain_cnn(model)
    if system == "raysim-bf16":
        return convolves(model) and case.batch >= BF16_BATCH
    if system == "flower" and case.method == "scaffold":
        return False
    size = 4 * sum(tensor.numel() for tensor in model.state_dict().values())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return system != "flower" or COPIES * case.cohort * size < memory


def measure(
    case: Case, pythons: dict[str, Path], rounds: int, limit_seconds: float
) -> dict[str, list[float]]:
    """Start the systems that suit a case, have them take turns, and end them."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        make_data(case, Path(folder))
        runners: dict[str, Runner] = {}
        for system, python in pythons.items():
            if suits(system, case):
                name, settings = SYSTEMS[system]
                command = command_of(name, python)
                runners[system] = Runner(
                    system, command, case, Path(folder), settings, suspended=name in ON_RAY
                )
                ends.callback(runners[system].close)
        return take_turns(runners, rounds, limit_seconds)


def title(case: Case) -> list[str]:
    """Return the cells that say what a case is."""
    work = f"{case.clients} x {case.samples}, B={case.batch}, E={case.epochs}, lr {case.lr:g}"
    return [case.network, str(case.cohort), work]


def chosen(workloads: Sequence[str], cohorts: Sequence[int] | None, method: str) -> list[Case]:
    """Return the cases of these workloads and cohorts, by a method."""
    return [
        replace(case, method=method)
        for case in CASES
        if case.network in workloads and (not cohorts or case.cohort in cohorts)
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--cohorts", nargs="+", type=int, help="only these clients a round")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--method", choices=METHODS, default=METHODS[0])
    parser.add_argument("--rounds", type=int, default=20, help="rounds of a repeat, at most")
    parser.add_argument("--repeats", type=int, default=3, help="each in new processes")
    parser.add_argument("--minutes", type=float, default=3, help="of one repeat of a case, about")
    parser.add_argument(
        "--environments", type=Path, default=user_cache_path("raysim") / "benchmarks"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all systems are ended
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    pythons = {
        system: make(system, arguments.environments.absolute())
        if system in PEERS
        else Path(sys.executable)
        for system in arguments.systems
    }
    ours = any(SYSTEMS[system][0] == "raysim" for system in pythons)
    told = [f"raysim on ray {version('ray')}"] if ours else []
    told += [versions(python, name) for name, python in pythons.items() if name in PEERS]
    print(f"`{' '.join(['python -m tests.benchmarks.compare', *sys.argv[1:]])}`\n")
    print(f"{machine()}; {'; '.join(told)}.\n")
    print(line(["workload", "cohort", "clients x samples", *arguments.systems]))
    print(line(["---"] * (3 + len(arguments.systems))), flush=True)
    for case in chosen(arguments.workloads, arguments.cohorts, arguments.method):
        repeats: list[Seconds] = []
        for number in range(arguments.repeats):
            repeats.append(measure(case, pythons, arguments.rounds, 60 * arguments.minutes))
            done = {name: len(seconds) for name, seconds in repeats[-1].items()}
            print(f"{case}: repeat {number + 1}, rounds {done}", file=sys.stderr, flush=True)
        cells = [cell(system, "bare", repeats) for system in arguments.systems]
        print(line([*title(case), *cells]), flush=True)


if __name__ == "__main__":
    main()
