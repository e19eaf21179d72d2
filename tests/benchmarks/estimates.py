"""What `raysim run --dry-run` says before a run, beside what the run then takes.

Usage: python -m tests.benchmarks.estimates [--only WORD]

A row per preset and size. The run starts once its estimate is printed, as a command of its own.
Its seconds are from its start to its end, without those in which Python imports (`list presets`
takes them) and those in which the process that waited longest for a core did so: the estimate is
for a machine without other work. The seconds of a clock stand beside them. Memory is the peak of
the sum over its processes: a page that several of them share counts for each. Disk is that of the
run directory at its end, bytes those of its last round. Each column has the estimate, the run's,
and their ratio.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, sleep

import psutil
import pyarrow.parquet as pq

from raysim.display.units import UNITS, in_fitting_unit
from tests.benchmarks.report import heading, line, machine

INLINE = "engine.backend=inline"
ROWS = {
    "2NN": ("mnist-fedavg", "rounds=12", INLINE),
    "2NN, 2 actors": ("mnist-fedavg", "rounds=20", "engine.actors=2"),
    "1000 clients": ("mnist-1000", "rounds=12", INLINE),
    "a million clients": ("mnist-million", "rounds=12", INLINE),
    "CNN": ("mnist-fedavg", "model.name=mnist-cnn-128", "local.epochs=1", "rounds=3", INLINE),
    "SCAFFOLD, states": (
        "mnist-noniid",
        "method.name=scaffold",
        "local.epochs=1",
        "rounds=25",
        INLINE,
    ),
    "Ditto, own tests": (
        *("mnist-noniid", "method.name=ditto", "evaluation.local_test=0.2", "local.epochs=1"),
        *("evaluation.every=5", "rounds=15", INLINE),
    ),
    "median, top-k": (
        *("mnist-fedavg", "aggregation.name=median", 'channel={"topk":{"fraction":0.1}}'),
        *("fraction=0.2", "local.epochs=1", "rounds=12", INLINE),
    ),
}
NO_END = ("target_accuracy=none",)


def raysim_command(*words: str) -> list[str]:
    """Return the command of raysim."""
    return [sys.executable, "-m", "raysim", *words]


def number(said: str, name: str, measured: str) -> float:
    """Return a value of the estimate in the unit that it is measured in."""
    found = re.search(rf"^{name} +([\d.e+]+) (\w+)", said, re.M)
    assert found, said
    return float(found[1]) * UNITS[measured][found[2]]


def waited(process: int) -> float:
    """Return the seconds that the main thread of a process has waited for a core."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def timed(words: Sequence[str]) -> tuple[float, float, float]:
    """Return the seconds of a run, those it waited for a core, and its processes' peak bytes."""
    begun, peak, waits = perf_counter(), 0, 0.0
    with subprocess.Popen(raysim_command(*words), stdout=subprocess.DEVNULL) as process:
        whole = psutil.Process(process.pid)
        while process.poll() is None:
            held = 0
            for one in (whole, *whole.children(recursive=True)):
                try:
                    held += one.memory_info().rss
                    waits = max(waits, waited(one.pid))
                except psutil.Error:
                    continue
            peak = max(peak, held)
            sleep(0.2)
    assert process.returncode == 0
    return perf_counter() - begun, waits, peak


def row(name: str, words: Sequence[str]) -> str:
    """Return the row of a run: its estimate, and what it takes."""
    imports, waits, _ = timed(("list", "presets"))
    imports -= waits
    begun = perf_counter()
    command = raysim_command("run", *words, *NO_END, "--dry-run")
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    dry = perf_counter() - begun
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        clock, waits, memory = timed(("run", *words, *NO_END, f"out={out}"))
        disk = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        last = pq.read_table(out / "metrics.parquet").to_pylist()[-1]
    cells = [name, f"{dry:.0f} s"]
    found = {"time": (clock - waits - imports, "s"), "memory": (memory, "B"), "disk": (disk, "B")}
    for kind, (value, unit) in {**found, "bytes": (last["bytes_up"], "B")}.items():
        estimate = number(said, kind, unit)
        shown = (in_fitting_unit(size, unit) for size in (estimate, value))
        cells.append(f"{' / '.join(shown)} ({estimate / value:.2f})")
    return line([*cells, in_fitting_unit(clock, "s")])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a word of the rows")
    only = parser.parse_args().only
    print(machine())
    print(heading("run", "dry run took", "time", "memory", "disk", "bytes up", "by the clock"))
    for name, words in ROWS.items():
        if only in name:
            print(row(name, words), flush=True)


if __name__ == "__main__":
    main()
