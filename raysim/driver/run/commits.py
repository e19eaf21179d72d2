"""Commits of a run: the files that its rounds change, from the last checkpoint on."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

from raysim.clock.availability import TICKS_PER_SECOND
from raysim.core.errors import RunError
from raysim.core.exits import delay_signals
from raysim.driver.clock.clock import VIRTUAL_SECONDS
from raysim.driver.context import Result, RunContext
from raysim.driver.evaluation import Evaluation
from raysim.driver.identity import accepted, with_environments
from raysim.driver.round_log import RoundLog
from raysim.execution.process import release_freed_memory
from raysim.storage.atomic import remove, write_json
from raysim.storage.checkpoints import Checkpoint, Checkpoints, save_tensors
from raysim.storage.recorder import Row, RunRecorder
from raysim.storage.summary import summarise
from raysim.storage.trace import TraceWriter


class Commits:
    """Commits of a run's rounds.

    Attributes:
        committed: The last committed round, or the initial state.
        recorder: Holds the rows of the committed rounds.
        trace: Writes their trace, if the run has one.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._settings = context.settings
        self._clients = len(context.federation.training_sizes)
        self._checkpoints = Checkpoints(context.run_dir.checkpoints, context.run_dir.config_values)
        self._workers: dict[str, Any] = {}
        self._on_disk = 0
        """Round from which on client states are not forced to disk yet."""
        self.recorder = RunRecorder(context.run_dir.path, self._settings.to_dict())
        self.trace: TraceWriter | None = None
        self.committed = replace(context.initial, identity=context.identity)

    def restore(self) -> None:
        """Roll back to the newest intact checkpoint; delete everything later.

        Rolled back are: checkpoints (damaged ones are renamed), client states, the rows of rounds
        and clients, and TensorBoard events. The committed state, the versions of the clients'
        states, their last losses and the size of a stack come from the checkpoint.
        """
        context = self._context
        note = context.listener.note
        latest = self._checkpoints.latest(self._clients, note, self._check_files)
        if latest:
            self.committed = accepted(latest, context)
            # A rolled-back run has the model of a later round, schema 0 an earlier one.
            save_tensors(context.run_dir.model, self._settings.method.deployed(latest.state))
        number = self.committed.number
        on_disk = context.states.roll_back(number, self._clients)
        context.updates.clear()
        if latest and latest.tables is None:
            self.committed = replace(self.committed, versions=on_disk)
        self._on_disk = number
        self.recorder.open(number, self.committed.tables)
        if self.committed.ticks is None:  # earlier versions had them only in rows
            seconds = (row.get(VIRTUAL_SECONDS) or 0 for row in self.recorder.rows)
            ticks = sum(round(each * TICKS_PER_SECOND) for each in seconds)
            self.committed = replace(self.committed, ticks=ticks)
        if self._settings.trace:
            self.trace = TraceWriter(context.run_dir.path, number + 1)
        if self.committed.number and context.run_dir.grows:
            self._grow()

    def _grow(self) -> None:
        """Have a finished run go on: `config.json` has its new number of rounds."""
        remove(self._context.run_dir.summary)
        self.committed = replace(self.committed, ended=False)

    def _check_files(self, checkpoint: Checkpoint) -> None:
        """Check the files outside a checkpoint's folder that it seals."""
        self._context.states.check(checkpoint.versions)
        if checkpoint.tables is not None:
            self.recorder.check(checkpoint.tables)

    @property
    def needed_from(self) -> int:
        """Oldest round whose client states a checkpoint needs."""
        return next(iter(self._checkpoints.numbers()), self.committed.number)

    @property
    def are_done(self) -> bool:
        """True if all rounds are committed, or one that reached the target or ended the run."""
        target, rows = self._settings.target_accuracy, self.recorder.rows
        accuracy = rows[-1].get("test_accuracy") if rows else None
        reached = target is not None and accuracy is not None and accuracy >= target
        return self.committed.number >= self._settings.rounds or reached or self.committed.ended

    @delay_signals()
    def end(self) -> None:
        """End the run with the last committed round.

        Raises:
            MachineError: a file cannot be written.
        """
        self._context.run_dir.check_place()
        self.committed = replace(self.committed, ended=True)
        self.save()

    def note_workers(self) -> None:
        """Record the description of the workers if it has changed."""
        self._workers = self._context.note_workers(self._workers, self.committed)

    @delay_signals()
    def commit(self, after: Checkpoint, row: Row, log: RoundLog, evaluation: Evaluation) -> None:
        """Commit a round, and checkpoint it if due.

        Args:
            after: The state after it; its clients are added to its history here.
            row: Its row of `metrics.parquet`.
            log: Figures of its passes.
            evaluation: Its evaluation.

        Raises:
            MachineError: a file cannot be written.
        """
        listener = self._context.listener
        for failure in log.dropped:
            listener.note(
                f"round {after.number}: client {failure.client} was dropped: {failure.cause}"
            )
        self.recorder.add(row, log.columns, evaluation.clients, evaluation.analyses)
        if self.trace:
            self.trace.virtual(after.number, log.columns)
        after.history.add(after.number, log.losses())  # in place: the round before is read no more
        self.committed = after
        if after.number % self._settings.checkpoint_every == 0 or self.are_done:
            self.save()
        self.recorder.publish(row)
        release_freed_memory()
        listener.round_done(row)

    def save(self) -> None:
        """Write model and checkpoint; the row has their seconds before the checkpoint is seen."""
        start, number = perf_counter(), self.committed.number
        identity = with_environments(self.committed.identity, self._workers.get("actors", ()))
        self.committed = replace(self.committed, identity=identity)
        deployed = self._settings.method.deployed(self.committed.state)
        save_tensors(self._context.run_dir.model, deployed)
        self._context.states.force_to_disk(self.committed.versions, self._on_disk)
        self._checkpoints.save(
            self.committed,
            lambda folder: self.recorder.seal(folder, number, perf_counter() - start),
            model=self._context.run_dir.model,
        )
        self._on_disk = number

    @delay_signals()
    def save_last(self) -> None:
        """Checkpoint the committed rounds when the run ends early."""
        try:
            self._context.run_dir.check_place()
            number = self.committed.number
            if number and number not in self._checkpoints.numbers() and self.recorder.rows:
                self.save()
            self.recorder.close()
        except RunError as error:
            self._context.listener.note(f"the last rounds could not be checkpointed: {error}")

    def finish(self) -> Result:
        """Write the summary; return the finished run."""
        run_dir = self._context.run_dir
        run_dir.check_place()
        deployed = self._settings.method.deployed(self.committed.state)
        self.recorder.close()
        self._context.updates.clear()
        summary = summarise(self.recorder.rows, self._settings.target_accuracy)
        if self.committed.forced:
            summary["forced"] = [*self.committed.forced]
        write_json(run_dir.summary, summary)
        self._context.listener.finished(summary)
        return Result(run_dir.path, summary, self.recorder.table(), dict(deployed))
