"""Work of runs in sample-steps, and its estimated time at the measured speed of this machine.

The work is rounds x clients of a round x samples that a client trains on, in local epochs or steps;
an asynchronous round counts the clients whose updates make a version.
The speed is measured on rounds of the run's own settings, with fewer clients and samples if these
would take longer than a few seconds. It includes a method's further passes, its server and the
driver, but no analyses and clocks. The speed of evaluations is measured apart, unless they take too
long. Start and checkpoints are added as measured. The estimate is for a machine without other work.
"""

from __future__ import annotations

import heapq
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import raysim
from raysim.api.rules import samples_of
from raysim.config import Settings
from raysim.errors import RunError
from raysim.federation.evaluation_sets import MOST_CLIENTS
from raysim.federation.federation import from_settings
from raysim.samples.client_indices import ListedIndices, own_indices
from raysim.user_input import canonical, key_text
from raysim.workloads.datasets.fetch import data_root

EVALUATED = 1 / 3
"""Cost of an evaluated sample in sample-steps; a backward pass costs about two forward passes."""
CLIENTS = 2
"""Fewest clients of a measured round."""
SCHEDULED = Path("/proc/thread-self/schedstat")
"""Linux's count of nanoseconds that a thread ran and that it waited for a core."""
TIMES = 3
"""Most sizes of measured rounds."""
SECONDS = 1.5
"""Approximate limit of a measured round, and time after which no further one is measured."""


@dataclass(frozen=True, eq=False)
class DataSize:
    """Samples of a run.

    Attributes:
        clients: Training samples of each client [K].
        test: Number of samples of the test set.
        local: Number of test samples of clients' own.
        held_out: Number of held-out samples.
        are_listed: Whether the run directory lists each client's samples.
    """

    clients: npt.NDArray[np.int64]
    test: int
    local: int = 0
    held_out: int = 0
    are_listed: bool = False

    @property
    def client(self) -> float:
        """Mean number of training samples of a client."""
        return float(self.clients.mean())


@dataclass(frozen=True)
class Pace:
    """Speed of a run, as measured on some rounds.

    Attributes:
        step: Seconds of a sample-step of training.
        evaluation: Seconds of a sample-step of an evaluation (`evaluation_steps`).
        start: Seconds until the first round, with the rehearsal.
        checkpoint: Seconds of a checkpoint.
        rows: The rows of the measured rounds.
        files: Bytes of the files of the measured run, by their paths in its directory.
    """

    step: float
    evaluation: float
    start: float = 0.0
    checkpoint: float = 0.0
    rows: Sequence[Mapping[str, Any]] = ()
    files: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Seconds:
    """Estimated seconds of a run's parts in one process.

    Attributes:
        start: Until the first round, with the rehearsal.
        training: Of all rounds without their evaluation.
        evaluation: Of all evaluations.
        checkpoints: Of all checkpoints.
    """

    start: float
    training: float
    evaluation: float
    checkpoints: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.start + self.training + self.evaluation + self.checkpoints


class RunCost:
    """Work of runs; their common data is opened once."""

    def __init__(self) -> None:
        self._sizes: dict[str, DataSize] = {}
        self._paces: dict[str, Pace] = {}

    def sample_steps(self, settings: Settings) -> float:
        """Return the number of samples that a run trains on, in all local epochs or steps.

        Raises:
            DataError: the data cannot be fetched or split.
        """
        local = settings.local
        of_clients = samples_of(local.work, self.size(settings).clients, local.batching)
        return settings.rounds * trained_clients(settings) * float(of_clients.mean())

    def seconds(self, settings: Settings) -> float:
        """Return an estimate of the seconds of a run on one slot.

        Raises:
            RaysimError: the measured rounds fail, with MachineError not because of the settings.
        """
        return self.parts(settings).total

    def parts(self, settings: Settings) -> Seconds:
        """Return the estimated seconds of a run's parts on one slot; see `seconds`."""
        evaluations = -(-settings.rounds // settings.evaluation.every)
        checkpoints = -(-settings.rounds // settings.checkpoint_every)
        pace, evaluated = self.pace(settings), evaluation_steps(settings, self.size(settings))
        return Seconds(
            pace.start,
            self.sample_steps(settings) * pace.step,
            evaluations * evaluated * pace.evaluation,
            checkpoints * pace.checkpoint,
        )

    def size(self, settings: Settings) -> DataSize:
        """Return the samples of a run.

        Raises:
            DataError: the data cannot be fetched or split.
        """
        names = ("dataset", "partition", "clients", "seed", "evaluation")
        key = _key(settings, *names)
        if key not in self._sizes:
            self._sizes[key] = _measure_size(settings)
        return self._sizes[key]

    def pace(self, settings: Settings) -> Pace:
        """Return the pace of this dataset, model, batch size and method.

        Raises:
            RaysimError: the measured rounds fail.
        """
        key = _key(settings, "dataset", "model", "method") + str(settings.local.batch_size)
        if key not in self._paces:
            self._paces[key] = measure(settings, self.size(settings))
        return self._paces[key]


def trained_clients(settings: Settings) -> int:
    """Return the number of clients whose updates make the model of a round."""
    asynchrony = settings.asynchrony
    if asynchrony is None:
        return settings.cohort_size
    return asynchrony.buffer or max(asynchrony.concurrency // asynchrony.tiers, 1)


def _key(settings: Settings, *names: str) -> str:
    values = settings.to_dict()
    return key_text(canonical({name: values[name] for name in names}))


def _measure_size(settings: Settings) -> DataSize:
    federation = from_settings(settings, data_root, lambda *_: None).with_local_test(settings)
    federation = federation.with_holdout(settings.evaluation.holdout, settings.seed)
    if not settings.evaluation.test:
        federation = federation.without_test()
    local_test, sizes = federation.local_test, federation.training_sizes
    return DataSize(
        sizes,
        len(federation.test_targets),
        int(local_test.indices.sizes.sum()) if local_test else 0,
        int((federation.client_indices.sizes - sizes).sum()),
        isinstance(own_indices(federation.client_indices), ListedIndices),
    )


def evaluation_steps(settings: Settings, size: DataSize) -> float:
    """Return the work of an evaluation in sample-steps, the training before it included.

    On clients' own samples, the evaluation scores the global model, the clients' deployed models,
    and their models after fine-tuning. Clients train for fine-tuning, and with
    `evaluation.when=after` for their deployed models, once for each set of samples.
    """
    evaluation, local = settings.evaluation, settings.local
    deploys_own = settings.method.deploys_client_models or evaluation.when == "after"
    sets = [samples for samples in (size.local, size.held_out) if samples]
    scored = sum(sets) * (1 + deploys_own + bool(evaluation.finetuning))
    of_training = int(size.clients.sum()) if evaluation.train_set else 0
    scored += of_training * (1 + deploys_own)
    trained = samples_of(evaluation.finetuning, size.clients, local.batching) * len(sets)
    if evaluation.when == "after":
        times = len(sets) + evaluation.train_set
        trained += samples_of(local.work, size.clients, local.batching) * times
    of_clients = EVALUATED * scored + float(trained.sum())
    return EVALUATED * size.test + of_clients * min(MOST_CLIENTS / len(size.clients), 1)


def measure(settings: Settings, size: DataSize) -> Pace:
    """Measure rounds of a run's own size, or smaller ones of about SECONDS.

    A first round of few steps decides the size of the measured rounds. They grow if they turn out
    to be far shorter, because a short round is mostly the cost of a round, not of its steps.

    Raises:
        RaysimError: the run fails.
    """
    settings = settings.override({"local.steps": None})  # a sample-step is as fast in an epoch
    trained, epochs = trained_clients(settings), settings.local.epochs
    batch = settings.local.batch_size
    least = size.client if batch == "full" else min(batch, size.client)
    # An asynchronous round has the updates of its settings at any fraction.
    asynchronous = settings.asynchrony is not None
    fewest = trained if asynchronous else min(trained, CLIENTS)
    smallest = _shortened(settings.override({"local.epochs": 1}), fewest, least)
    first = _rounds(smallest, False)
    per_second = fewest * _measure_size(smallest).client / first.seconds
    for _ in range(TIMES):
        affordable = per_second * SECONDS / epochs
        clients = min(trained, max(round(affordable / size.client), fewest))
        samples = min(size.client, max(affordable / clients, least))
        shortened = _shortened(settings, clients, samples)
        taken = _measure_size(shortened)
        evaluation = evaluation_steps(shortened, taken)
        evaluates = 0 < evaluation / per_second <= SECONDS
        watch = _rounds(shortened, evaluates)
        per_client = float(samples_of(epochs, taken.clients, settings.local.batching).mean())
        seconds = watch.seconds / (clients * per_client)
        if watch.seconds > SECONDS / 2 or (clients, samples) == (trained, size.client):
            break
        per_second = 1 / seconds
    return Pace(
        step=seconds,
        evaluation=watch.evaluation_seconds / evaluation if evaluates else seconds,
        start=max(first.start_seconds, watch.start_seconds),
        checkpoint=watch.checkpoint_seconds,
        rows=(*watch.rows,),
        files=watch.files,
    )


def _shortened(settings: Settings, clients: int, samples: float) -> Settings:
    """Return settings of rounds of some clients with some samples each.

    They are drawn from as many clients as in the run, so that settings bounded by these stay valid.
    """
    every, count = clients == trained_clients(settings), max(round(samples), 1)
    # Clients that are tested on their own samples may have none in common.
    partition: dict[str, Any] = {"partition.name": "resample", "partition.samples": count}
    if settings.evaluation.local_test:
        partition = {"partition.name": "iid", "partition.limit": max(count, 2)}
    fraction = settings.fraction if every else clients / settings.clients
    return settings.override({**partition, "fraction": fraction})


def _rounds(settings: Settings, evaluates: bool) -> _Stopwatch:
    """Run rounds, and return their seconds.

    Raises:
        RaysimError: the run fails.
    """
    gpus = settings.engine.gpus_per_actor if torch.cuda.is_available() else 0.0
    stopwatch = _Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        changes = {
            "clock.name": "none",  # its policies may ask more clients, or not wait
            "evaluation.every": 1 if evaluates else settings.rounds + 1,
            "checkpoint_every": 1,
            "target_accuracy": None,
            "patience": None,  # as nothing may be evaluated
            "patience_metric": None,
            "keep_clients": False,
            "analysis": (),  # a cohort of two has fewer pairs
            "trace": False,
            "tracker": None,  # a measured run is not for the user's tracker
            "engine.backend": "inline",
            "engine.gpus_per_actor": gpus,
            "out": str(out),
        }
        try:
            raysim.run(settings.override(changes), listener=stopwatch)
        except _Measured:
            pass
        except RunError as error:  # its advice is for a folder that is about to be deleted
            raise type(error)(error.problem) from error
        stopwatch.files = {
            path.relative_to(out).as_posix(): path.stat().st_size
            for path in out.rglob("*")
            if path.is_file()
        }
    return stopwatch


class _Measured(Exception):  # noqa: N818 - no error
    """Signal that ends a run that has been measured for long enough."""


class _Stopwatch(raysim.Listener):
    """Seconds of the rounds of a run, and of their evaluation.

    The run ends SECONDS after its first round, which has one-time costs, and not before the second.
    Time in which other processes have the core is left out.

    Attributes:
        rows: The rows of its rounds.
        start_seconds: Seconds until the first round.
        files: Bytes of its files, by their paths in the run directory.
    """

    def __init__(self) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.start_seconds = 0.0
        self.files: Mapping[str, int] = {}
        self._last = self._second = perf_counter()
        self._waited = waited_seconds()

    def started(self, run: raysim.Started) -> None:
        """Record the seconds until the first round."""
        self.start_seconds = self._lap() * (perf_counter() - self._second)

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Record the seconds of a round."""
        share = self._lap()
        measured = ("seconds", "evaluation_seconds")
        self.rows.append({**row, **{name: row[name] * share for name in measured}})
        if len(self.rows) == 1:
            self._second = perf_counter()
        elif perf_counter() - self._second > SECONDS:
            raise _Measured

    def _lap(self) -> float:
        """Return the share of the time since the last call in which others had not the core."""
        last, waited = self._last, self._waited
        self._last, self._waited = perf_counter(), waited_seconds()
        return max(1 - (self._waited - waited) / max(self._last - last, 1e-9), 0.01)

    @property
    def seconds(self) -> float:
        """Median over the rounds without the first, which has one-time costs."""
        return self._median("seconds")

    @property
    def evaluation_seconds(self) -> float:
        """Median of the evaluations' seconds, likewise."""
        return self._median("evaluation_seconds")

    @property
    def checkpoint_seconds(self) -> float:
        """Median of the checkpoints' seconds, likewise."""
        return self._median("checkpoint_seconds")

    def _median(self, column: str) -> float:
        rows = self.rows[1:] or self.rows
        return float(statistics.median(row.get(column, 0.0) for row in rows))


def waited_seconds() -> float:
    """Return the seconds that this thread has waited for a core; 0 if the system has no count."""
    with suppress(OSError, ValueError, IndexError):
        return int(SCHEDULED.read_text("ascii").split()[1]) / 1e9
    return 0.0


def time_in_slots(seconds: Sequence[float], slots: int) -> float:
    """Return the time until all runs have ended, each in turn given to the first free slot."""
    free = [0.0] * slots
    for run_seconds in seconds:
        heapq.heapreplace(free, free[0] + run_seconds)
    return max(free)
