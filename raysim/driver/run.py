"""The driver: opens a run directory, runs rounds, commits them, and finishes the run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
from torch import Tensor

from raysim.config import Settings
from raysim.core.errors import MachineError, RunError
from raysim.core.method import Round
from raysim.core.seeds import sample_cohort
from raysim.driver.evaluation import Evaluation, Evaluator
from raysim.driver.listener import Listener, Started
from raysim.driver.passes import PassRunner, RoundLog
from raysim.driver.preflight import check_space, first_checkpoint
from raysim.execution.allocator import release_freed_memory
from raysim.execution.base import Executor
from raysim.execution.ray_runtime import make_executor, ray_session
from raysim.execution.worker import WorkerSpec
from raysim.federation.federation import Federation
from raysim.storage.atomic import write_json
from raysim.storage.checkpoints import Checkpoint, Checkpoints, save_tensors
from raysim.storage.client_states import ClientStates
from raysim.storage.recorder import Row, RunRecorder, summarise
from raysim.storage.run_directory import RunDir
from raysim.storage.trace import DRIVER, Stopwatch, TraceWriter
from raysim.training.stacked.stack_size import clients_together


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        run_dir: The run directory.
        summary: The figures of `summary.json`.
        metrics: A row per round, as in `metrics.parquet`.
        params: The deployed model's tensors, as in `model.safetensors`.
    """

    run_dir: Path
    summary: dict[str, Any]
    metrics: pa.Table
    params: dict[str, Tensor]


def drive(
    settings: Settings,
    federation: Federation,
    run_dir: RunDir,
    listener: Listener,
    own_task: bool = False,
) -> Result:
    """Run, or go on with, a run; nothing is written before everything has been checked.

    Raises:
        RaysimError: a setting, a file or a client does not allow the run.
        KeyboardInterrupt: the run was interrupted; its last committed round is checkpointed.
    """
    federation = federation.with_holdout(settings.evaluation.holdout, settings.seed)
    first = first_checkpoint(settings, federation)
    states = ClientStates(run_dir.states.absolute())
    check_space(settings, states, first.state)
    evaluator = Evaluator(settings, federation)
    spec = WorkerSpec(settings, federation, states.folder, evaluator.sent)
    watch = Stopwatch(settings.trace)
    with (
        ray_session(settings.engine),
        _closing(make_executor(spec, watch)) as executor,
        run_dir.claim(settings, own_task),
    ):
        checkpoints = Checkpoints(run_dir.checkpoints)
        checkpoint = checkpoints.latest(listener.note) or first
        run_dir.save_partition(federation.client_indices)
        run_dir.save_environment()
        run = _Run(
            settings,
            federation,
            run_dir,
            executor,
            evaluator,
            watch,
            listener,
            states,
            checkpoints,
            checkpoint,
        )
        return run.go()


@contextmanager
def _closing(executor: Executor) -> Iterator[Executor]:
    try:
        yield executor
    finally:
        executor.close()


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM, which schedulers send before they kill, like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class _Run:
    """The rounds of one run."""

    settings: Settings
    federation: Federation
    run_dir: RunDir
    executor: Executor
    evaluator: Evaluator
    watch: Stopwatch
    listener: Listener
    states: ClientStates
    checkpoints: Checkpoints
    committed: Checkpoint

    def __post_init__(self) -> None:
        sizes = self.federation.training_sizes
        self.clients = len(sizes)
        self.workers: dict[str, Any] = {}
        together = clients_together(
            self.settings, self.federation, self.executor.describe, self.listener.note
        )
        self.passes = PassRunner(
            self.settings,
            sizes,
            self.executor,
            watch=self.watch,
            listener=self.listener,
            errors=self.run_dir.errors,
            together=together,
            kept=self.states.roll_back(self.committed.number, self.clients),
        )
        self.recorder = RunRecorder(self.run_dir.path, self.settings.to_dict())
        first = self.committed.number + 1
        self.trace = TraceWriter(self.run_dir.path, first) if self.settings.trace else None

    def go(self) -> Result:
        settings, first = self.settings, self.committed.number
        self.recorder.open(first)
        self.listener.started(
            Started(
                path=self.run_dir.path,
                method=settings.method.title,
                round_number=first,
                rounds=settings.rounds,
                cohort=settings.cohort_size,
                clients=self.clients,
                target=settings.target_accuracy,
            )
        )
        with _terminate_as_interrupt():
            try:
                while not self._is_done(self.committed.number):
                    self._round(self.committed)
                    self._note_workers()
            except MachineError as error:
                self._rescue(self.committed)
                hint = f"mend that, then go on with: raysim resume {self.run_dir.path}"
                raise MachineError(f"{error}; {hint}") from error
            except BaseException:
                self._rescue(self.committed)
                raise
        return self._finish(self.committed)

    def _round(self, before: Checkpoint) -> None:
        """Run, evaluate, record and, where it is due, checkpoint one round."""
        begun = perf_counter()
        settings, number = self.settings, before.number
        kept = self.checkpoints.numbers()
        log = self.passes.begin(number, before.state, kept[0] if kept else number)
        step = number if number >= 0 else number + settings.method.warmup
        lr = settings.local.lr * settings.local.lr_decay**step
        cohort = sample_cohort(settings.seed, number, self.clients, settings.cohort_size)
        now = Round(
            number=number,
            cohort=tuple(cohort),
            clients=self.clients,
            epochs=settings.local.epochs,
            lr=lr,
            run=self.passes.run,
            note=self.listener.note,
        )
        state, metrics = settings.method.round(now, before.state)
        self.states.delete(self.passes.end())
        seconds = perf_counter() - begun
        spans = log.spans | {DRIVER: self.watch.take()}
        after = Checkpoint(number + 1, state)
        evaluation, evaluation_seconds = self._evaluate(after)
        row: Row = {
            "round": after.number,
            **log.figures(),
            **evaluation.figures,
            "lr": lr,
            "seconds": seconds,
            "evaluation_seconds": evaluation_seconds,
            "checkpoint_seconds": 0.0,
            **metrics,
        }
        if self.trace:
            workers = len(self.executor.describe()["actors"])
            later = {**evaluation.spans, DRIVER: self.watch.take()}
            row |= self.trace.round(after.number, seconds, workers, spans, later)
        self._commit(after, row, log, evaluation)

    def _commit(self, after: Checkpoint, row: Row, log: RoundLog, evaluation: Evaluation) -> None:
        for failure in log.dropped:
            self.listener.note(
                f"round {after.number}: client {failure.client} was dropped: {failure.cause}"
            )
        self.recorder.add(row, log.columns, evaluation.clients)
        self.committed = after
        if after.number % self.settings.checkpoint_every == 0:
            begun = perf_counter()
            self._save(after)
            row["checkpoint_seconds"] = perf_counter() - begun
        self.recorder.publish(row)
        release_freed_memory()
        self.listener.round_done(row)

    def _evaluate(self, after: Checkpoint) -> tuple[Evaluation, float]:
        begun = perf_counter()
        due = after.number % self.settings.evaluation.every == 0
        if after.number < 1 or not (due or after.number == self.settings.rounds):
            return self.evaluator.none, 0.0
        deployed = self.settings.method.deployed(after.state)
        with self.watch("evaluation"):
            evaluation = self.evaluator.evaluate(self.executor, deployed)
        return evaluation, perf_counter() - begun

    def _is_done(self, number: int) -> bool:
        target, rows = self.settings.target_accuracy, self.recorder.rows
        accuracy = rows[-1].get("test_accuracy") if rows else None
        reached = target is not None and accuracy is not None and accuracy >= target
        return number >= self.settings.rounds or reached

    def _note_workers(self) -> None:
        """Write where the work runs whenever that has changed."""
        before, self.workers = self.workers, self.executor.describe()
        if self.workers == before:
            return
        self.run_dir.save_environment(**self.workers)
        if before:
            return
        if any(actor.get("gpus") and actor["device"] == "cpu" for actor in self.workers["actors"]):
            self.listener.note("GPUs are declared to Ray but absent: actors train on the CPU")

    def _save(self, checkpoint: Checkpoint) -> None:
        self.recorder.flush()
        self.checkpoints.save(checkpoint)
        save_tensors(self.run_dir.model, self.settings.method.deployed(checkpoint.state))

    def _rescue(self, checkpoint: Checkpoint) -> None:
        """Keep what is committed when the run ends early."""
        try:
            if checkpoint.number not in self.checkpoints.numbers() and self.recorder.rows:
                self._save(checkpoint)
            self.recorder.close()
        except RunError as error:
            self.listener.note(f"the last rounds could not be checkpointed: {error}")

    def _finish(self, checkpoint: Checkpoint) -> Result:
        self._save(checkpoint)
        self.recorder.close()
        summary = summarise(self.recorder.rows, self.settings.target_accuracy)
        write_json(self.run_dir.summary, summary)
        self.listener.finished(summary)
        deployed = self.settings.method.deployed(checkpoint.state)
        return Result(self.run_dir.path, summary, self.recorder.table(), dict(deployed))
