"""raysim: a run of a task of one's own, with its records, without evaluation and checkpoints."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import raysim
from raysim.driver.listeners.listener import Started
from tests.benchmarks.peers.turns import EndedError, Turns
from tests.benchmarks.peers.work import MU, ROUNDS, Case


class TakingTurns(raysim.Listener):
    """Holds the run up between rounds."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def started(self, run: Started) -> None:
        self.wait()

    def round_done(self, row: Mapping[str, Any]) -> None:
        self.wait()

    def wait(self) -> None:
        if not self.turns.wait():
            raise EndedError


def task_of(case: Case, folder: Path) -> raysim.Task:
    """Return the task of a case, whose data lies in a folder."""
    x, y = (np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
    return raysim.Task(
        model=case.build, clients=list(zip(x, y, strict=True)), test=(x[0][:10], y[0][:10])
    )


def settings_of(case: Case, out: Path, **settings: Any) -> raysim.Settings:
    """Return the settings of a case, and others by their dotted keys."""
    overrides = {
        "method.name": case.method,
        **({"method.mu": MU} if case.method == "fedprox" else {}),
        "rounds": ROUNDS,
        "fraction": case.cohort / case.clients,
        "target_accuracy": None,
        "local.epochs": case.epochs,
        "local.batch_size": case.batch,
        "local.lr": case.lr,
        "evaluation.every": ROUNDS,
        "checkpoint_every": 100,  # clients' states add up on the disk until then
        "out": str(out),
    }
    return raysim.load_config("mnist-fedavg", overrides | settings)


def run(case: Case, folder: Path, turns: Turns, **settings: Any) -> None:
    """Train rounds with settings of raysim by their dotted keys."""
    with tempfile.TemporaryDirectory() as out:
        found = settings_of(case, Path(out) / "run", **settings)
        try:
            raysim.run(found, task_of(case, folder), TakingTurns(turns))
        except EndedError:
            return
