"""Benchmark of a CUDA machine in under 25 minutes, useful from its first two on.

Usage: python -m tests.benchmarks.gpu [--out runs/gpu] [--minutes 24] [--parts tests speed ...]
           [--networks mnist-cnn-128 ...] [--environments DIR | --no-pfl] [--tiny]

Writes RESULTS-GPU.md, results.jsonl, plots and the logs of what it runs into --out: page and rows
as figures come, plots after each job. It runs unattended: every job has a process of its own and
a time limit, and its failure is no more than a line of the page. Jobs that are done are not run
again: the same command goes on where the time, or the machine, was at an end (`--minutes 9`, say,
where it is lent by ten). Without a CUDA device everything runs on the CPU, where nothing is
recorded as a graph; `--tiny` shows in minutes that all of it works. It needs the packages of the
extra `dev`: without matplotlib there are no plots, without packaging no pfl.

Parts, in their order:
tests       the tests that need a CUDA device, without those of the full set.
speed       first, for some seconds, three systems on the first network, before the tests; then
            local steps a second in fp32 on random samples (300 a client, B=10, E=1): raysim in one
            process (inline) by stack, with and without CUDA graphs, beside a bare PyTorch loop, the
            same with its step recorded as a CUDA graph, and pfl by processes on the same GPU. In
            every sweep each system trains a round; the ratios are of neighbouring rounds. Graphs
            are switched off by patching.
cell        seconds a round of `fedmax-cifar10-noniid`, and minutes of its 3000 rounds.
memory      bytes of a client in a stack, counted, against the engine's estimate, by which
            `engine.vectorize=auto` sizes stacks; bytes that CUDA takes beside tensors.
bf16        `speed` in bf16.
environment seconds of a launch, of a wait and of copies; whether MPS is there.
bits        whether a run gives the same bits twice, and those of steps that are not recorded, in
            fp32 and bf16, alone and stacked; its distance from a CPU's; deterministic or not.
actors      seconds a round, bits and memory of 1, 2, 4 and 8 actors on Ray, against one process.
profile     calls of CUDA in a round, kernels with most time, and the card's busy time.
faults      what a user reads where memory is short; an actor that is killed within a round.
evaluation  seconds of an evaluation by the samples of a forward pass.
unequal     a stack of clients of unequal sizes, against equal ones.
new-methods the tests that need a CUDA device of methods that no page has yet.
full-tests  the tests of the full set that need a CUDA device.

The eight parts from `environment` to `new-methods` take 14 minutes in all, at most, for a device
that is lent: `--no-pfl --minutes 14 --parts environment bits actors profile faults evaluation
unequal new-methods`.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import torch
from platformdirs import user_cache_path

from raysim.execution.process import mps_limits
from tests.benchmarks.gpu import report
from tests.benchmarks.gpu.apart import run_apart
from tests.benchmarks.gpu.jobs import NETWORKS, PARTS, Choice, plan
from tests.benchmarks.gpu.peer import Pfl
from tests.benchmarks.gpu.results import Outcome, Results
from tests.benchmarks.report import machine

BETWEEN_SECONDS = 5.0
"""Seconds after rows and page of a job under way in which none are written."""
LEAST_SECONDS = 45.0
"""Seconds that must be left for a job to begin."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--minutes", type=float, default=24, help="of the whole, at most")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--tiny", action="store_true", help="show only that everything works")
    peers = parser.add_mutually_exclusive_group()
    peers.add_argument(
        "--environments", type=Path, default=user_cache_path("raysim") / "benchmarks"
    )
    peers.add_argument("--no-pfl", action="store_true", help="leave pfl out")
    return parser.parse_args(arguments)


class Page:
    """The page of the results."""

    def __init__(self, results: Results, pfl: Pfl, out: Path, arguments: Sequence[str]) -> None:
        self._results, self._pfl, self._out = results, pfl, out
        self._about = [
            f"`{' '.join(['python -m tests.benchmarks.gpu', *arguments])}`",
            f"{machine()}{'; MPS' if mps_limits(1.0) else ''}.",
        ]
        self._next = 0.0

    def show(self, outcome: Outcome) -> None:
        """Show what there is of a job that is under way."""
        self._results.show(outcome)
        if perf_counter() > self._next:
            self._results.add(outcome)
            self.write(draw=False)
            self._next = perf_counter() + BETWEEN_SECONDS

    def write(self, *, draw: bool) -> None:
        """Write the page; where this fails the figures are in results.jsonl."""
        told, pfl = self._about, self._pfl
        if pfl.reason:
            told = [*told, f"pfl: not measured: {pfl.reason}."]
        try:
            report.write(self._results, self._out, told, draw=draw)
        except Exception:  # of any kind: the other jobs are still to run
            traceback.print_exc()


def main(arguments: Sequence[str] | None = None) -> None:
    begun = perf_counter()
    options = parse(arguments)
    out: Path = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    pfl = Pfl(None if options.no_pfl else options.environments)
    results = Results(out, device)
    page = Page(results, pfl, out, arguments or sys.argv[1:])
    choice = Choice(options.parts, options.networks, options.tiny, out)
    for job in plan(choice, pfl, device != "cpu"):
        left = begun + 60 * options.minutes - perf_counter()
        if results.is_done(job.name):
            continue
        if left < LEAST_SECONDS:
            outcome = Outcome(job.name, job.part, "no time was left", 0.0, device)
        else:
            limit = min(job.limit, left)
            outcome = run_apart(job, limit, device, out / "log.txt", page.show)
        results.add(outcome)
        page.write(draw=True)
        print(f"{job.name}: {outcome.state}, {outcome.seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
