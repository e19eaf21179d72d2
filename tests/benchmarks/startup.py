"""Seconds from the command to its first round; memory of all its processes.

Usage: python -m tests.benchmarks.startup [--presets mnist-fedavg mnist-million] [--times 3]

Starting is all until the first round is finished, less what the second round takes; data has been
fetched. While the run checks and restores its files, its actors start: it says what it trains
before that, which is a column too. `bare` is a program that calls `ray.init` and waits for one
actor that imports torch; the ratios to it are of the same repeat, in which it and the presets run
one after another. CPU seconds are those of all its processes until the first round is finished, of
`bare` until its actor is ready: other load of the machine counts less in them. Memory is the peak,
over all processes of one more run, of the sum of their proportional set sizes: shared pages count
once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, sleep

import psutil

from tests.benchmarks.report import heading, line, machine

BARE = """
import ray

@ray.remote
class Actor:
    def __init__(self):
        import torch

    def ready(self):
        return "ready"

ray.init("local", include_dashboard=False, log_to_driver=False)
actor = Actor.remote()
print(ray.get(actor.ready.remote()), flush=True)
input()
"""


def bare() -> tuple[float, float]:
    """Return the seconds, and CPU seconds, that Ray and one actor that imports torch take."""
    begun = perf_counter()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", BARE], **pipes, text=True) as ray:
        assert ray.stdout is not None and ray.stdout.readline() == "ready\n"
        seconds, spent = perf_counter() - begun, cpu_of(psutil.Process(ray.pid))
        ray.communicate("\n")
    return seconds, spent


@contextmanager
def running(preset: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a run of two rounds, and the folder that it names when it says what it trains."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "raysim", "run", preset, "rounds=2", f"out={folder}/run"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            yield process, f"{folder}/run"


def measure(preset: str) -> tuple[float, float, float]:
    """Return the seconds of starting, those until a run says what it trains, and CPU seconds."""
    begun = perf_counter()
    with running(preset) as (process, folder):
        assert process.stdout is not None
        said = next(perf_counter() for text in process.stdout if folder in text)
        first = next(perf_counter() for text in process.stdout if "round 1 " in text)
        spent = cpu_of(psutil.Process(process.pid))
        second = next(perf_counter() for text in process.stdout if "round 2 " in text)
        process.communicate()
    return 2 * first - second - begun, said - begun, spent


def cpu_of(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its children so far."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += sum(each.cpu_times()[:2])
        except psutil.Error:  # it ended meanwhile
            continue
    return total


def peak_memory(preset: str) -> int:
    """Return the peak of the bytes of a run's processes."""
    peak = 0
    with running(preset) as (process, _):
        while process.poll() is None:
            try:
                peak = max(peak, memory_of(psutil.Process(process.pid)))
            except psutil.Error:  # it ended meanwhile
                break
            sleep(0.3)
        process.communicate()
    return peak


def memory_of(process: psutil.Process) -> int:
    """Return the bytes of a process and its children, shared pages counted once."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().pss
        except psutil.Error:  # it ended meanwhile
            continue
    return total


def spread(values: list[float], digits: int = 1) -> str:
    """Return the median of some values, the least and the greatest."""
    median, *ends = (f"{of(values):.{digits}f}" for of in (statistics.median, min, max))
    return f"{median} ({' to '.join(ends)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["mnist-fedavg", "mnist-million"])
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - 15 by default: any other load would count against Ray
    print(machine())
    own: list[tuple[float, float]] = []
    runs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in arguments.presets}
    for _ in range(arguments.times):
        own.append(bare())
        for preset, measured in runs.items():
            measured.append(measure(preset))
    names = ("starting, s", "/ bare", "says what it trains after, s", "CPU, s", "peak memory, MB")
    print(heading("", *names))
    seconds, spent = (list(column) for column in zip(*own, strict=True))
    print(line(["bare", spread(seconds), "1.00", "-", spread(spent), "-"]))
    for preset, measured in runs.items():
        starts, says, spent = (list(column) for column in zip(*measured, strict=True))
        ratios = [start / each for start, each in zip(starts, seconds, strict=True)]
        memory = f"{peak_memory(preset) / 1e6:.0f}"
        cells = [spread(starts), spread(ratios, 2), spread(says), spread(spent), memory]
        print(line([preset, *cells]))


if __name__ == "__main__":
    main()
