"""Seconds from the command to its first round, begun and finished; memory of all its processes.

Usage: python -m tests.benchmarks.startup [--presets mnist-fedavg mnist-million] [--times 3]

The first round begins when the run says what it trains; fetching data, where it is missing, is
before that. Memory is the peak, over all processes of the run, of the sum of their proportional set
sizes: shared pages count once.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
from time import perf_counter, sleep

import psutil


def memory_of(process: psutil.Process) -> int:
    """Return the bytes of a process and its children, shared pages counted once."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().pss
        except psutil.Error:  # it ended meanwhile
            continue
    return total


def measure(preset: str) -> tuple[float, float, float]:
    """Return seconds until the first round begins and until it is finished, and peak bytes."""
    peak = 0
    with tempfile.TemporaryDirectory() as folder:
        begun = perf_counter()
        command = [sys.executable, "-m", "raysim", "run", preset, "rounds=2", f"out={folder}/run"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        def watch() -> None:
            nonlocal peak
            while process.poll() is None:
                try:
                    peak = max(peak, memory_of(psutil.Process(process.pid)))
                except psutil.Error:
                    return
                sleep(0.3)

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert process.stdout is not None
        started = next(perf_counter() for line in process.stdout if f"{folder}/run" in line)
        first = next(perf_counter() for line in process.stdout if line.startswith("round 1 "))
        process.communicate()
        watcher.join()
    return started - begun, first - begun, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["mnist-fedavg", "mnist-million"])
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    for preset in arguments.presets:
        figures = zip(*(measure(preset) for _ in range(arguments.times)), strict=True)
        started, first, peak = map(statistics.median, figures)
        print(
            f"{preset}: first round begins after {started:.1f} s, is finished after {first:.1f} s,"
            f" peak memory {peak / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
