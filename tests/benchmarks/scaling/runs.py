"""Runs of raysim for the scale benchmarks, and the figures that are taken from them."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq

import raysim
from raysim.storage.trace import WORKER_PHASES

WARM_UP = 2
"""Rounds at first that do not count: actors start, their speeds are learned."""
NEVER = 10**6
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """A run, without its first rounds.

    Attributes:
        actors: Its actors.
        rows: Rows of `metrics.parquet`.
        walls: Per row, the seconds since the round before was over, without evaluation.
        clients: Per row, what each of its clients took, in seconds.
        samples: Samples of all those clients.
        first: Seconds from the call to the end of the first round.
    """

    actors: int
    rows: list[Row]
    walls: list[float]
    clients: list[list[float]]
    samples: list[int]
    first: float

    @property
    def seconds(self) -> float:
        """Median seconds of a round."""
        return float(np.median([row["seconds"] for row in self.rows]))

    @property
    def training(self) -> float:
        """Mean seconds of a client's local training."""
        training = sum(row["worker_training_seconds"] for row in self.rows)
        return training / sum(map(len, self.clients))


class Clock(raysim.Listener):
    """Notes when rounds are over, and where asked how much memory this process then has.

    What a run tells its user goes to standard error: one that fell back is seen.
    """

    def __init__(self, memory: bool = False) -> None:
        self.moments = [perf_counter()]
        self.resident: list[int] = []
        self.private: list[int] = []
        self._process = psutil.Process() if memory else None

    def round_done(self, row: Row) -> None:
        self.moments.append(perf_counter())
        if self._process:
            used = self._process.memory_full_info()
            self.resident.append(used.rss)
            self.private.append(used.uss)

    def note(self, text: str) -> None:
        print(f"note: {text}", file=sys.stderr, flush=True)


def measure(preset: str, rounds: int, overrides: Row) -> Measured:
    """Run a preset for some rounds after the warm-up, with a profile and without evaluation."""
    fixed = {"evaluation.every": NEVER, "trace": True}
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        result = _run(preset, rounds + WARM_UP, {**fixed, **overrides}, folder, clock)
        columns = ["round", "samples", "seconds"]
        table = pq.read_table(result.run_dir / "clients.parquet", columns=columns)
        environment = json.loads((result.run_dir / "environment.json").read_text())
    rows = result.metrics.to_pylist()
    number, samples, seconds = (table[name].to_numpy() for name in columns)
    walls = np.diff(clock.moments) - [row["evaluation_seconds"] for row in rows]
    kept = rows[WARM_UP:]
    return Measured(
        actors=len(environment["actors"]),
        rows=kept,
        walls=walls[WARM_UP:].tolist(),
        clients=[seconds[number == row["round"]].tolist() for row in kept],
        samples=samples[number > WARM_UP].tolist(),
        first=clock.moments[1] - clock.moments[0],
    )


def driver_memory(preset: str, rounds: int, overrides: Row) -> Clock:
    """Run a preset; return the memory after each round."""
    clock = Clock(memory=True)
    with tempfile.TemporaryDirectory() as folder:
        _run(preset, rounds, overrides, folder, clock)
    return clock


def _run(preset: str, rounds: int, overrides: Row, folder: str, clock: Clock) -> raysim.Result:
    own = {"rounds": rounds, "target_accuracy": None, "out": str(Path(folder) / "run")}
    settings = raysim.load_config(preset, own | dict(overrides))
    return raysim.run(settings, listener=clock)


def worker_shares(run: Measured, setup: float) -> dict[str, float]:
    """Return what the workers' seconds went into, as shares of all of them.

    All are the actors times the time from round to round; `between` is what of it is in no round:
    records, checkpoints. The engine's cost is all but `steps`. Seconds are of the clock: where the
    driver has no core of its own, what it takes from a worker in training counts as steps, and
    `cost_beside` is the other reading.

    Args:
        run: The run, profiled.
        setup: Seconds of a client's training that are no steps: loading the model, seeding, taking
            the result.
    """
    spent = {
        phase: sum(row[f"worker_{phase}_seconds"] for row in run.rows) for phase in WORKER_PHASES
    }
    in_rounds = run.actors * sum(row["seconds"] for row in run.rows)
    everything = run.actors * sum(run.walls)
    preparing = setup * sum(map(len, run.clients))
    waiting = in_rounds - sum(spent.values())
    seconds = {
        "steps": spent.pop("training") - preparing,
        "set-up": preparing,
        **spent,
        "waiting": waiting,
        "between": everything - in_rounds,
    }
    return {name: each / everything for name, each in seconds.items()}


def cost_beside(run: Measured, steps: float) -> float:
    """Return the engine's cost if every client's local steps take so many seconds."""
    return 1 - steps * sum(map(len, run.clients)) / (run.actors * sum(run.walls))


def over_the_bound(run: Measured) -> list[float]:
    """Return per round its time over the longest-first bound.

    The bound is the larger of all clients' seconds over the actors, and the longest client's.
    """
    bounds = [max(sum(each) / run.actors, *each) for each in run.clients]
    return [row["seconds"] / bound for row, bound in zip(run.rows, bounds, strict=True)]


def slope(values: Sequence[float]) -> float:
    """Return the growth of a series a step, by least squares."""
    return float(np.polyfit(np.arange(len(values)), values, 1)[0])
