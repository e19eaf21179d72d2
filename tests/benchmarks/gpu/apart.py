"""Jobs in processes of their own: one that fails, crashes or takes too long costs no other.

Nothing of torch is imported here, so that a process starts at once.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

import psutil

from tests.benchmarks.gpu.results import DONE, UNDER_WAY, Emit, Outcome, Row

WAITING_SECONDS = 0.2
REASON_LENGTH = 300


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        name: Its name in the results.
        part: The part that it belongs to.
        run: Does the work; it is given what takes its rows.
        limit: Seconds after which it is ended.
    """

    name: str
    part: str
    run: Callable[[Emit], None]
    limit: float


def run_apart(
    job: Job, limit: float, device: str, log: Path, show: Callable[[Outcome], None]
) -> Outcome:
    """Run a job in a process of its own; end it and all that it started at the limit.

    Args:
        job: The job.
        limit: Seconds.
        device: Name of the GPU, for the outcome.
        log: File to which its process and those that it starts write.
        show: Given what there is whenever there are more rows.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job.run, there, log))
    begun = perf_counter()
    process.start()
    there.close()
    rows: Sequence[Row] = []
    state = ""
    try:
        while not state and (left := begun + limit - perf_counter()) > 0:
            if here.poll(min(left, WAITING_SECONDS)):
                kind, content = here.recv()
                if kind == "end":
                    state = content
                    continue
                rows, seconds = content, perf_counter() - begun
                if not here.poll():  # the latest
                    show(Outcome(job.name, job.part, UNDER_WAY, seconds, device, rows))
    except EOFError:  # it was killed, or crashed
        process.join()
        state = f"failed: its process ended with code {process.exitcode}"
    finally:
        _end(process.pid)
        process.join()
    seconds = perf_counter() - begun
    return Outcome(job.name, job.part, state or f"ended after {limit:.0f} s", seconds, device, rows)


def _end(pid: int | None) -> None:
    """Kill a process and all that it started."""
    try:
        process = psutil.Process(pid)
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for each in family:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue


def _work(run: Callable[..., None], pipe: Connection, log: Path) -> None:
    """Run a job in this process; send its rows, then what came of it."""
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    state = DONE
    try:
        run(lambda rows: pipe.send(("rows", rows)))
    except Exception as error:  # whatever it is, the other jobs are still to run
        traceback.print_exc()
        state = " ".join(f"failed: {type(error).__name__}: {error}".split())[:REASON_LENGTH]
    sys.stdout.flush()  # it may be killed as soon as the end is known
    pipe.send(("end", state))
