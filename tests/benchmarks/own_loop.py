"""CPU time of a round with a training loop of one's own, beside the bare loop, and its memory.

Usage: python -m tests.benchmarks.own_loop [--rounds 10] [--clients 1000]

The 2NN, 10 of 100 clients with 600 samples each, B=10, E=1, inline; rounds of raysim's own steps
(`steps`), of a loop that takes the same ones (`loop`) and of the bare loop take turns. Medians of a
round, and their ratio to the bare loop's. Then the resident memory of a process after 10 and after
all clients of one round with a loop that keeps a number for each.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
import torch
import torch.nn.functional as F

import raysim
from tests.benchmarks.peers.ours import settings_of, task_of
from tests.benchmarks.peers.work import Case, make_data, open_data, train

CASE = Case("2nn", clients=100, samples=600, cohort=10)
MEGABYTE = 2**20
RESIDENT: list[float] = []


def take_steps(client: raysim.Client) -> None:
    """Take FedAvg's steps."""
    optimizer = client.optimizer()
    for x, y in client.batches():
        optimizer.zero_grad()
        F.cross_entropy(client.model(x), y).backward()
        optimizer.step()


def count(client: raysim.Client) -> None:
    """Take them, keep a number, and note the memory."""
    take_steps(client)
    client.state["samples"] = client.samples
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    RESIDENT.append(pages * 4096 / MEGABYTE)


def bare_round(folder: Path) -> Callable[[], None]:
    """Return a round of the bare loop."""
    x, y = open_data(folder)
    model, draws = CASE.build(), np.random.default_rng(0)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def run() -> None:
        for client in draws.choice(CASE.clients, CASE.cohort, replace=False):
            model.load_state_dict(start)
            train(model, x[client], y[client], CASE)

    return run


def raysim_round(folder: Path, name: str, loop: raysim.Task | None) -> Callable[[], None]:
    """Return a round of raysim, with a loop or its own steps."""
    task = replace(task_of(CASE, folder), train=loop)
    settings = settings_of(CASE, folder / name, **{"engine.backend": "inline"})
    rounds = raysim.rounds(settings, task)
    return lambda: next(rounds) and None


def memory(folder: Path, clients: int) -> None:
    """Print the memory of a round of many clients."""
    case = replace(CASE, clients=clients, cohort=clients, samples=20)
    make_data(case, folder)
    settings = settings_of(case, folder / "many", **{"engine.backend": "inline", "rounds": 1})
    raysim.run(settings, replace(task_of(case, folder), train=count))
    print(
        f"resident MB after 10 clients {RESIDENT[-clients + 9]:.1f}, {clients} {RESIDENT[-1]:.1f}"
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=1000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(CASE, folder)
        systems = {
            "bare": bare_round(folder),
            "steps": raysim_round(folder, "steps", None),
            "loop": raysim_round(folder, "loop", take_steps),
        }
        seconds: dict[str, list[float]] = {system: [] for system in systems}
        for _ in range(asked.rounds + 1):
            for system, run in systems.items():
                begun = process_time()
                run()
                seconds[system].append(process_time() - begun)
        medians = {system: median(found[1:]) for system, found in seconds.items()}
        for system, found in medians.items():
            print(
                f"{system}: {found:.3f} s a round, {found / medians['bare']:.2f} of the bare loop"
            )
    with tempfile.TemporaryDirectory() as name:
        memory(Path(name), asked.clients)


if __name__ == "__main__":
    main()
