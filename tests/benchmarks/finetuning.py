"""A frozen base of 110 million parameters: what it costs a run, and how often a node holds it.

Usage: python -m tests.benchmarks.finetuning cost [--pairs 5] [--rounds 40]
    python -m tests.benchmarks.finetuning actors [--actors 4]
    python -m tests.benchmarks.finetuning flower [--actors 2] [--rounds 40] [--environments DIR]

`cost` runs a network of 0.3 million trained parameters with a frozen base before it and the same
network alone, each in a process of its own, in turns. The base is an embedding of 107,000 x 1,024,
of which a sample reads one row, so that steps cost nearly the same and what is left is what a round
costs beside them. Prints the medians over the pairs, and the median of the pairs' ratios, of

- the driver's private memory: the greatest Private_Clean + Private_Dirty, of all mappings but the
  base's file, and beside it of that file, which counts as private while one process maps it;
- bytes up and down in a round, and of the checkpoint;
- seconds of a round, at the median.

`actors` runs the first on actors, and prints for each process that maps the base's file its Rss and
Pss there, after the last round. The Pss of all processes add up to the file's bytes if a node holds
it once.

`flower` has raysim, Flower's simulation and a bare loop on two processes take turns at rounds of
SmolLM2 with peft's adapters, on the same steps, as `compare` does. Prints the seconds of a round,
the proportional memory of all processes of each, and the ratios to Flower's, of the seconds also
beside the bare loop's. The first call makes Flower's environment, with transformers and peft.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from platformdirs import user_cache_path
from torch import Tensor, nn

import raysim
from tests.benchmarks.environments import make, versions
from tests.benchmarks.peers.networks import FOLDER
from tests.benchmarks.peers.work import Case, make_data
from tests.benchmarks.report import line, machine
from tests.benchmarks.runner import ON_RAY, Runner, command_of, take_turns
from tests.tasks import long_settings

ROWS, WIDTH = 107_000, 1024
CLIENTS, SAMPLES, INPUTS = 4, 8, 280
FILE = ".base"
"""Ending of the names of bases' files."""
MIB = 2**20
SIZE = ("Rss", "Pss", "Private_Clean", "Private_Dirty")


class Small(nn.Module):
    """Network of 0.29 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(INPUTS, 1000), nn.Linear(1000, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(x)))


class Large(Small):
    """The same after a frozen embedding of 110 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Embedding(ROWS, WIDTH).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        rows = (x[:, 0].abs() * ROWS).long() % ROWS
        return super().forward(x + self.base(rows)[:, :INPUTS])


NETWORKS: Mapping[str, type[nn.Module]] = {"small": Small, "large": Large}


def mappings(pid: int | str) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the file of each mapping of a process, and its sizes in bytes."""
    name, sizes = "", dict[str, int]()
    for text in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *others = text.split()
        if not first.endswith(":"):
            if sizes:
                yield name, sizes
            name, sizes = others[-1] if len(others) > 4 else "", {}
        elif first[:-1] in SIZE:
            sizes[first[:-1]] = 1024 * int(others[0])
    yield name, sizes


def of_base(pid: int | str) -> dict[str, int]:
    """Return the sizes of a process's mappings of a base's file."""
    found = [sizes for name, sizes in mappings(pid) if name.endswith(FILE)]
    return {key: sum(sizes[key] for sizes in found) for key in SIZE}


class Memory(raysim.Listener):
    """Watches the private memory of the driver after each round, the base's file apart."""

    def __init__(self) -> None:
        self.private = self.base = 0

    def round_done(self, row: Mapping[str, Any]) -> None:
        private = {True: 0, False: 0}
        for name, sizes in mappings("self"):
            private[name.endswith(FILE)] += sizes["Private_Clean"] + sizes["Private_Dirty"]
        self.private = max(self.private, private[False])
        self.base = max(self.base, private[True])


class Shares(raysim.Listener):
    """Reads after the last round what each process maps of the base."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.found = rounds, dict[str, dict[str, int]]()

    def round_done(self, row: Mapping[str, Any]) -> None:
        if row["round"] < self.rounds:
            return
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            with suppress(OSError, psutil.Error):  # it has just ended
                if (sizes := of_base(process.pid))["Rss"]:
                    name = "driver" if process == own else process.cmdline()[0]
                    self.found[f"{name} {process.pid}"] = sizes


def run(
    network: str, out: Path, rounds: int, listener: raysim.Listener, **engine: Any
) -> raysim.Result:
    """Train rounds of all clients, a step of one batch each."""
    torch.manual_seed(0)
    clients = [
        (torch.randn(SAMPLES, INPUTS), torch.randint(10, (SAMPLES,))) for _ in range(CLIENTS)
    ]
    task = raysim.Task(model=NETWORKS[network], clients=clients, test=clients[0])
    more = {"local.epochs": 1, "local.batch_size": SAMPLES, "evaluation.every": rounds, **engine}
    return raysim.run(long_settings(out, rounds=rounds, fraction=1.0, **more), task, listener)


def cell(network: str, rounds: int) -> dict[str, float]:
    """Return the figures of a run in this process."""
    memory = Memory()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        result = run(network, out, rounds, memory, **{"engine.backend": "inline"})
        sizes = [path.stat().st_size for path in (out / "checkpoints").rglob("*") if path.is_file()]
    columns = {name: median(result.metrics[name].to_pylist()[1:]) for name in COLUMNS}
    return {
        "private memory, MiB": memory.private / MIB,
        "of the base's file, MiB": memory.base / MIB,
        **{words: columns[name] for name, words in COLUMNS.items()},
        "checkpoint, bytes": sum(sizes),
    }


COLUMNS = {
    "bytes_up": "bytes up a round",
    "bytes_down": "bytes down a round",
    "seconds": "seconds a round",
}


def in_process(network: str, rounds: int) -> dict[str, float]:
    """Return the figures of a run in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "cell", network, "--rounds", str(rounds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def cost(pairs: int, rounds: int) -> None:
    """Print what a run with the base costs beside one without."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in NETWORKS}
    for number in range(pairs):
        for name in sorted(NETWORKS, reverse=number % 2 == 0):
            found[name].append(in_process(name, rounds))
    print(line(["", "0.3M alone", "with 110M frozen", "ratio"]))
    print(line(["---"] * 4))
    for words in found["small"][0]:
        small, large = ([figures[words] for figures in found[name]] for name in NETWORKS)
        ratios = [b / a for a, b in zip(small, large, strict=True) if a]
        shown = f"{median(ratios):.2f}" if ratios else "-"
        print(line([words, f"{median(small):.4g}", f"{median(large):.4g}", shown]))


def actors(count: int) -> None:
    """Print what each process of a node maps of the base."""
    shares = Shares(rounds=3)
    engine = {
        "engine.backend": "ray",
        "engine.actors": count,
        "engine.cpus_per_actor": min(1.0, (os.cpu_count() or 1) / count),
    }
    with tempfile.TemporaryDirectory() as folder:
        run("large", Path(folder) / "run", shares.rounds, shares, **engine)
    print(line(["process", "Rss, MiB", "Pss, MiB"]))
    print(line(["---"] * 3))
    for name, sizes in shares.found.items():
        print(line([name, *(f"{sizes[key] / MIB:.1f}" for key in ("Rss", "Pss"))]))
    total = sum(sizes["Pss"] for sizes in shares.found.values())
    print(f"\nPss of all: {total / MIB:.1f} MiB; the base: {4 * ROWS * WIDTH / MIB:.1f} MiB")


def flower(count: int, rounds: int, environments: Path) -> None:
    """Print seconds and memory of raysim beside Flower's on the same steps."""
    from raysim.workloads.models.pretrained.packs import fetched

    os.environ[FOLDER] = str(fetched("smollm2"))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    python = make("flower-peft", environments.absolute())
    case = Case("smollm2-lora", clients=8, samples=16, cohort=4, batch=4, lr=0.01)
    share = min(1.0, (os.cpu_count() or 1) / count)
    ours = {"engine.backend": "ray", "engine.actors": count, "engine.cpus_per_actor": share}
    systems = {
        "bare": (Path(sys.executable), {}),
        "raysim": (Path(sys.executable), ours),
        "flower": (python, {"actors": count}),
    }
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        make_data(case, Path(folder))
        runners = dict[str, Runner]()
        for name, (interpreter, settings) in systems.items():
            command, waits = command_of(name, interpreter), name in ON_RAY
            runners[name] = Runner(name, command, case, Path(folder), settings, suspended=waits)
            ends.callback(runners[name].close)
        seconds = take_turns(runners, rounds, limit_seconds=3600)
        memory = {name: runner.memory() / MIB for name, runner in runners.items()}
    print(f"{versions(python, 'flower-peft')}; {case}; {count} actors\n")
    print(line(["", "seconds a round", "ratio", "beside the steps", "memory, MiB", "ratio"]))
    print(line(["---"] * 6))
    steps, theirs = median(seconds["bare"]), median(seconds["flower"])
    for name in systems:
        mine = median(seconds[name])
        cells = [f"{mine:.2f}", f"{mine / theirs:.2f}", f"{(mine - steps) / (theirs - steps):.2f}"]
        ratio = memory[name] / memory["flower"]
        print(line([name, *cells, f"{memory[name]:.0f}", f"{ratio:.2f}"]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("cost", "actors", "flower", "cell"))
    parser.add_argument("network", nargs="?", choices=NETWORKS, default="large")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--actors", type=int, help="by default 4, and 2 beside Flower")
    parser.add_argument(
        "--environments", type=Path, default=user_cache_path("raysim") / "benchmarks"
    )
    arguments = parser.parse_args()
    if arguments.what == "cell":
        print(json.dumps(cell(arguments.network, arguments.rounds)))
        return
    print(f"`{' '.join(['python -m tests.benchmarks.finetuning', *sys.argv[1:]])}`\n")
    print(f"{machine()}\n")
    if arguments.what == "cost":
        cost(arguments.pairs, arguments.rounds)
    elif arguments.what == "actors":
        actors(arguments.actors or 4)
    else:
        flower(arguments.actors or 2, arguments.rounds, arguments.environments)


if __name__ == "__main__":
    main()
