"""Clients trained together (`engine.vectorize`) against clients trained one at a time.

Usage: python -m tests.benchmarks.vectorize [--rounds 5] [--together auto 16 64] [--whole] [--tiny]

Prints two tables in Markdown: clients a second, and over those of the inline executor that trains
one client at a time. On a machine with a CUDA device the clients are on it, one actor takes all of
it and four a quarter each; elsewhere they are on cores. Runs unattended; rounds are without
evaluation, and two at first do not count.

mnist-cnn-128   600 MNIST samples a client, cohort 100, E=1, B=10.
FedMAX's cell   `fedmax-cifar10-noniid`: cifar-cnn-5, 10 clients of 500 samples, E=1, B=100; the
                last column is what its 3000 rounds would take at the median round. `--whole` runs
                them all, with an evaluation every 100 rounds, and prints their time and accuracy.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - 15 by default; others' load would count

import torch

import raysim
from tests.benchmarks.report import line, machine
from tests.benchmarks.scaling.output import heading
from tests.benchmarks.scaling.runs import measure

MNIST = "mnist-cnn-128"
FEDMAX = "fedmax-cifar10-noniid"
PUBLISHED_ROUNDS = 3000
Size = int | str
"""Clients together, or "auto"."""


def size(text: str) -> Size:
    return text if text == "auto" else int(text)


def engines(together: list[Size]) -> dict[str, dict[str, Any]]:
    """Return the engines' settings by what they are, the reference first."""
    device = torch.cuda.is_available()
    inline = {"engine.backend": "inline", "engine.gpus_per_actor": float(device)}
    on_ray = {"engine.actors": 1, "engine.gpus_per_actor": float(device)}
    quarters = {"engine.actors": 4, "engine.gpus_per_actor": 0.25 if device else 0.0}
    cases = {"inline, one at a time": inline}
    cases |= {f"inline, together {k}": {**inline, "engine.vectorize": k} for k in together}
    cases |= {f"one actor, together {k}": {**on_ray, "engine.vectorize": k} for k in together}
    return cases | {"four actors, one at a time": quarters}


def table(preset: str, work: Mapping[str, Any], together: list[Size], rounds: int) -> None:
    """Run one workload with every engine."""
    print(heading("engine", "round, s", "clients/s", "ratio", f"{PUBLISHED_ROUNDS} rounds, min"))
    reference = None
    for name, engine in engines(together).items():
        run = measure(preset, rounds, {**work, **engine, "profile": False})
        pace = len(run.clients[0]) / run.seconds
        reference = reference or pace
        whole = PUBLISHED_ROUNDS * run.seconds / 60
        cells = [name, f"{run.seconds:.3g}", f"{pace:.1f}", f"{pace / reference:.2f}"]
        print(line([*cells, f"{whole:.1f}"]), flush=True)


def whole_cell(engine: Mapping[str, Any]) -> str:
    """Run all rounds of FedMAX's cell; return its time and accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"out": str(Path(folder) / "run"), "evaluation.every": 100, "checkpoint_every": 100}
        begun = perf_counter()
        result = raysim.run(raysim.load_config(FEDMAX, {**own, **engine}))
        minutes = (perf_counter() - begun) / 60
    return f"{minutes:.1f} min, accuracy {result.summary['final_accuracy']:.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--together", nargs="+", type=size, default=["auto", 16, 64])
    parser.add_argument("--whole", action="store_true", help="all rounds of FedMAX's cell")
    parser.add_argument("--tiny", action="store_true", help="show only that everything works")
    arguments = parser.parse_args()
    print(f"{machine()}\n\n{MNIST}, cohort 100\n")
    cohort = 0.03 if arguments.tiny else 1.0
    work = {"model.name": MNIST, "clients": 100, "fraction": cohort, "local.epochs": 1}
    table("mnist-fedavg", work, arguments.together, arguments.rounds)
    print(f"\n{FEDMAX}\n")
    table(FEDMAX, {"fraction": min(cohort, 0.1)}, arguments.together, arguments.rounds)
    if arguments.whole:
        stacked = list(engines(arguments.together).items())[1]
        print(f"\nall {PUBLISHED_ROUNDS} rounds, {stacked[0]}: {whole_cell(stacked[1])}")


if __name__ == "__main__":
    main()
