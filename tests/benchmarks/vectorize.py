"""Clients trained together (`engine.vectorize`) against clients trained one at a time.

Usage: python -m tests.benchmarks.vectorize [--rounds 5] [--together auto 16 64] [--whole] [--tiny]

Prints two tables in Markdown: clients a second, and over those of one client at a time, by the
inline executor and by four actors. On a machine with a CUDA device the clients are on it, one actor
takes all of it and four a quarter each; elsewhere they are on cores. Runs unattended: every engine
has a process of its own, so that what it held is given back and its failure is no more than a line
of the table. An engine that trained clients one at a time though it was to train them together is
marked `fell back`; why is on standard error. On a CPU `auto` is one at a time, without a mark.
Rounds are without evaluation, and two at first do not count.

mnist-cnn-128   600 MNIST samples a client, cohort 100, E=1, B=10.
FedMAX's cell   `fedmax-cifar10-noniid`: cifar-cnn-5, 10 clients of 500 samples, E=1, B=100; the
                last column is what its 3000 rounds would take at the median round. `--whole` runs
                them all, with an evaluation every 100 rounds, and prints their time and accuracy.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - 15 by default; others' load would count

import torch

import raysim
from tests.benchmarks.report import line, machine
from tests.benchmarks.scaling.output import heading
from tests.benchmarks.scaling.runs import Clock, measure

MNIST = "mnist-cnn-128"
FEDMAX = "fedmax-cifar10-noniid"
PUBLISHED_ROUNDS = 3000
LOOP, FOUR = "inline, one at a time", "four actors, one at a time"
FELL_BACK = "clients are trained one at a time"
"""In what a run tells where clients could not be trained together."""
REASON_LENGTH = 200
Made = TypeVar("Made")
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
    cases: dict[str, dict[str, Any]] = {LOOP: inline, FOUR: quarters}
    cases |= {f"inline, together {k}": {**inline, "engine.vectorize": k} for k in together}
    return cases | {f"one actor, together {k}": {**on_ray, "engine.vectorize": k} for k in together}


def apart(function: Callable[..., Made], *arguments: Any) -> Made | str:
    """Call a function in a process of its own; return "failed: reason" where it fails."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, function, arguments))
    process.start()
    there.close()
    try:
        answer: Made | str = here.recv()
    except EOFError:  # it was killed, or crashed
        answer = ""
    process.join()
    return answer or f"failed: its process ended with code {process.exitcode}"


def _answer(pipe: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    try:
        pipe.send(function(*arguments))
    except Exception as error:  # whatever it is, the other engines are still to be measured
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        pipe.send(f"failed: {reason[:REASON_LENGTH].replace('|', '/')}")


def table(preset: str, work: Mapping[str, Any], together: list[Size], rounds: int) -> None:
    """Run one workload with every engine."""
    columns = ("engine", "round, s", "clients/s", "over inline", "over four actors")
    print(heading(*columns, f"{PUBLISHED_ROUNDS} rounds, min"))
    paces: dict[str, float] = {}
    for name, engine in engines(together).items():
        run = apart(measure, preset, rounds, {**work, **engine, "trace": False})
        if isinstance(run, str):
            print(line([name, run, *["-"] * len(columns[1:])]), flush=True)
            continue
        pace = paces[name] = len(run.clients[0]) / run.seconds
        ratios = [f"{pace / paces[each]:.2f}" if each in paces else "-" for each in (LOOP, FOUR)]
        mark = " (fell back)" if any(FELL_BACK in note for note in run.notes) else ""
        whole = PUBLISHED_ROUNDS * run.seconds / 60
        cells = [name + mark, f"{run.seconds:.3g}", f"{pace:.1f}", *ratios, f"{whole:.1f}"]
        print(line(cells), flush=True)


def whole_cell(engine: Mapping[str, Any]) -> str:
    """Run all rounds of FedMAX's cell; return its time and accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"out": str(Path(folder) / "run"), "evaluation.every": 100, "checkpoint_every": 100}
        begun = perf_counter()
        clock = Clock()
        result = raysim.run(raysim.load_config(FEDMAX, {**own, **engine}), listener=clock)
        minutes = (perf_counter() - begun) / 60
    mark = ", fell back" if any(FELL_BACK in note for note in clock.notes) else ""
    return f"{minutes:.1f} min, accuracy {result.summary['final_accuracy']:.2%}{mark}"


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
        name = f"inline, together {arguments.together[0]}"
        told = apart(whole_cell, engines(arguments.together)[name])
        print(f"\nall {PUBLISHED_ROUNDS} rounds, {name}: {told}")


if __name__ == "__main__":
    main()
