"""Work of runs in sample-steps, and the time that it takes at the measured speed of this machine.

A run counts rounds x cohort x local epochs x samples of a client. The speed is that of the run's
own settings with two clients of a few batches, so that a method's further passes, its server and
the driver are in it. An evaluated sample counts as a third of a sample-step, as a backward pass
costs about two forward ones.
"""

from __future__ import annotations

import heapq
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import raysim
from raysim.config import Settings
from raysim.core.arrow import open_split
from raysim.core.client_indices import Holdout
from raysim.core.data import prepared
from raysim.workloads.datasets.fetch import data_root

EVALUATED = 1 / 3
"""Sample-steps that an evaluated sample counts."""
CLIENTS, BATCHES = 2, 8
"""Clients of a measured round, and batches of each, where they have as many samples."""
SECONDS = 2.0
"""Seconds after which no further round is measured."""


@dataclass(frozen=True)
class DataSize:
    """Mean number of training samples of a client, and number of test samples."""

    client: float
    test: int


class Workload:
    """Work of runs; the data of several is opened once."""

    def __init__(self) -> None:
        self._sizes: dict[str, DataSize] = {}
        self._speeds: dict[str, float] = {}

    def sample_steps(self, settings: Settings) -> float:
        """Return the samples that a run trains on, those of all local epochs.

        Raises:
            DataError: the data cannot be fetched or split.
        """
        per_round = settings.cohort_size * settings.local.epochs * self._size(settings).client
        return settings.rounds * per_round

    def seconds(self, settings: Settings) -> float:
        """Return an estimate of the seconds of a run on one slot."""
        evaluations = -(-settings.rounds // settings.evaluation.every)
        evaluated = EVALUATED * evaluations * self._size(settings).test
        return (self.sample_steps(settings) + evaluated) / self._speed(settings)

    def _size(self, settings: Settings) -> DataSize:
        names = ("dataset", "partition", "clients", "seed", "evaluation")
        key = _key(settings, *names)
        if key not in self._sizes:
            self._sizes[key] = _measure_size(settings)
        return self._sizes[key]

    def _speed(self, settings: Settings) -> float:
        """Return the sample-steps a second of this model, batch size and method."""
        key = _key(settings, "dataset", "model", "method") + str(settings.local.batch_size)
        if key not in self._speeds:
            self._speeds[key] = measure_speed(settings, round(self._size(settings).client))
        return self._speeds[key]


def _key(settings: Settings, *names: str) -> str:
    values = settings.to_dict()
    return json.dumps([values[name] for name in names])


def _measure_size(settings: Settings) -> DataSize:
    paths = prepared(settings.dataset, data_root(), lambda *_: None)
    clients = settings.partition.client_indices(
        open_split(paths["train"]), settings.clients, settings.seed
    )
    holdout = Holdout(settings.evaluation.holdout, settings.seed)
    sizes = holdout.training_sizes(clients.sizes)
    return DataSize(float(sizes.mean()), len(open_split(paths["test"])))


def measure_speed(settings: Settings, samples: int) -> float:
    """Return the sample-steps a second of a run with two clients of a few batches.

    Args:
        settings: Settings of the run.
        samples: Samples of a client in it.

    Raises:
        RaysimError: the run fails.
    """
    batch = settings.local.batch_size
    count = samples if batch == "full" else min(samples, BATCHES * batch)
    clients = min(settings.cohort_size, CLIENTS)
    gpus = settings.engine.gpus_per_actor if torch.cuda.is_available() else 0.0
    stopwatch = _Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        short = settings.override(
            {
                "partition.name": "resample",
                "partition.samples": max(count, 1),
                "clients": clients,
                "fraction": 1.0,
                "evaluation.every": settings.rounds + 1,
                "checkpoint_every": settings.rounds + 1,
                "target_accuracy": None,
                "engine.backend": "inline",
                "engine.gpus_per_actor": gpus,
                "out": str(Path(folder) / "run"),
            }
        )
        with suppress(_Measured):
            raysim.run(short, listener=stopwatch)
    seconds = statistics.median(stopwatch.seconds[1:] or stopwatch.seconds)
    return clients * max(count, 1) * settings.local.epochs / seconds


class _Measured(Exception):  # noqa: N818 - no error
    """Raised in a run that has been measured for long enough."""


class _Stopwatch(raysim.Listener):
    """Seconds of the rounds of a run, which ends after SECONDS."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begun = perf_counter()

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Keep the seconds of a round."""
        self.seconds.append(row["seconds"])
        if perf_counter() - self._begun > SECONDS:
            raise _Measured


def time_in_slots(seconds: Sequence[float], slots: int) -> float:
    """Return the time until all runs have ended, each given to the first free slot, in order."""
    free = [0.0] * slots
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)
