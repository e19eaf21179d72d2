"""Commits of a run's rounds: write, checkpoint and restore the files of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from raysim.api.columns import Column
from raysim.api.scoring import HOLDOUT
from raysim.driver.evaluation.evaluation import Evaluation
from raysim.driver.rounds.advice import deadline_note, guessing_note
from raysim.driver.rounds.round_log import RoundLog
from raysim.driver.rounds.stopping import Stopping
from raysim.driver.start.context import Result, RunContext
from raysim.driver.start.identity import accepted, with_environments
from raysim.errors import RunError
from raysim.execution.process import release_freed_memory
from raysim.numbers.tensors import Tensors, flatten
from raysim.numbers.tensors.digests import checksums
from raysim.process.exits import delay_signals
from raysim.storage.atomic import remove, write_json
from raysim.storage.checkpoints import Checkpoint, Checkpoints, model_metadata, save_tensors
from raysim.storage.recorder import Row, RunRecorder
from raysim.storage.run_state import Best, RunState
from raysim.storage.summary import of_local_tests, summarise
from raysim.storage.trace import TraceWriter


class Commits:
    """Commits of a run's rounds.

    Attributes:
        committed: The last committed round, or the initial state.
        recorder: Holds the rows of the committed rounds.
        trace: Writes the trace of the committed rounds; None unless the run has one.
        last_round: The last round that may run.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._settings = context.settings
        self._clients = len(context.federation.training_sizes)
        self._checkpoints = Checkpoints(context.run_dir.checkpoints, context.run_dir.config_values)
        self._workers: dict[str, Any] = {}
        self._on_disk = 0
        """Round from which on client states are not yet forced to disk."""
        self.recorder = RunRecorder(
            *(context.run_dir.path, self._settings.to_dict(), context.declared),
            context.federation.names,
        )
        self.trace: TraceWriter | None = None
        self.committed = context.initial
        self._sealed = Checkpoint(context.initial, context.identity)
        """The last checkpoint that was read, or the checkpoint of the initial state."""
        self._sums = checksums(flatten(self.committed.state.groups))
        self.last_round = context.last_round
        self._stopping = Stopping(self._settings, context.evaluator.columns, self.last_round)
        self._best: dict[int, Tensors] = {}
        """Models of the best rounds, by their numbers."""
        self._best_written = 0

    def restore(self) -> None:
        """Roll back to the newest intact checkpoint; delete later files.

        This rolls back checkpoints (damaged ones are renamed), client states, the rows of rounds
        and clients, and TensorBoard events. The checkpoint holds the committed state, the versions
        of client states, the clients' last losses and the stack size.
        """
        context = self._context
        note = context.listener.note
        latest = self._checkpoints.latest(self._clients, note, self._check_files)
        if latest:
            self._sealed = accepted(latest, context)
            self.committed = self._sealed.run
            # The model file of a rolled-back run may be that of a later round.
            self._save_model(context.run_dir.model, self._deployed())
        number = self.committed.number
        context.states.roll_back(number)
        context.updates.clear()
        self._on_disk = number
        self.recorder.open(self._sealed.tables)
        if context.clock:
            context.clock.costs.counter.restore(self.committed.costs)
        if self._settings.trace:
            self.trace = TraceWriter(context.run_dir.path, number + 1)
        if context.run_dir.grows:
            context.run_dir.grow()
            self._sealed = replace(self._sealed, ended=False)
        self._restore_best()

    def _restore_best(self) -> None:
        """Find the best round in the rows; take its model from the checkpoint."""
        for row in self.recorder.rows:
            self._stopping.add(row)
        if best := self.committed.best:
            self._best[best.number] = self._deployed() if best.model is None else best.model
        if self._stopping.best == self.committed.number > 0:
            self._best[self.committed.number] = self._deployed()
        if not self._save_best():
            remove(self._context.run_dir.best_model)

    def _deployed(self) -> Tensors:
        return self._settings.method.deployed(self.committed.state)

    def _save_model(self, path: Path, tensors: Tensors) -> None:
        save_tensors(path, tensors, model_metadata(self._context.identity))

    def _check_files(self, checkpoint: Checkpoint) -> None:
        """Check the files that a checkpoint seals outside its folder."""
        self._context.states.check(checkpoint.run.versions)
        if checkpoint.tables is not None:
            self.recorder.check(checkpoint.tables)

    @property
    def score(self) -> Column | None:
        """Column of the main score; None if nothing is evaluated."""
        return self._stopping.score

    @property
    def needed_from(self) -> int:
        """Oldest round whose client states a checkpoint needs."""
        return next(iter(self._checkpoints.numbers()), self.committed.number)

    @property
    def are_done(self) -> bool:
        """True if the last committed round is the end; see `Stopping.reason`."""
        return self._reason is not None

    @property
    def _reason(self) -> str | None:
        return self._stopping.reason(self.committed.number, ended=self._sealed.ended)

    @delay_signals()
    def end(self) -> None:
        """End the run with the last committed round.

        Raises:
            MachineError: a file cannot be written.
        """
        self._context.run_dir.check_place()
        self._sealed = replace(self._sealed, ended=True)
        self.save()

    def note_workers(self) -> None:
        """Record the description of the workers if it has changed."""
        self._workers = self._context.note_workers(
            self._workers, stack_size=self.committed.stack_size, forced=self._sealed.forced
        )

    @delay_signals()
    def commit(self, after: RunState, row: Row, log: RoundLog, evaluation: Evaluation) -> None:
        """Commit a round, and checkpoint it if due.

        Args:
            after: The state after the round; this call adds the round's clients to its history.
            row: The round's row of `metrics.parquet`.
            log: Figures of the round's passes.
            evaluation: The round's evaluation.

        Raises:
            MachineError: a file cannot be written.
        """
        listener = self._context.listener
        for failure in log.dropped:
            client = self._context.federation.named(failure.client)
            listener.note(f"round {after.number}: client {client} was dropped: {failure.cause}")
        tables = log.columns, evaluation.clients, evaluation.analyses
        self.recorder.add(row, *tables, declared=log.declared)
        if self.trace:
            self.trace.virtual(after.number, log.columns)
        took_part = log.losses(self._settings.participants.listed)
        after.history.add(after.number, took_part)  # in place: nothing reads the state before
        self.committed, self._sums = after, checksums(flatten(after.state.groups))
        self._stopping.add(row)
        if self._stopping.best == after.number:
            self._keep_best()
        if after.number % self._settings.checkpoint_every == 0 or self.are_done:
            self.save()
        self.recorder.publish(row)
        release_freed_memory()
        listener.round_done(row)
        federation, network = self._context.federation, self._context.network
        if said := guessing_note(self.recorder.rows, federation, network, self._settings):
            listener.note(said)

    def _keep_best(self) -> None:
        """Hold the model of the last committed round as the best one until it is written."""
        best = {name: tensor.clone() for name, tensor in self._deployed().items()}
        kept = self._stopping.regular_best
        self._best = {n: model for n, model in self._best.items() if n == kept}
        self._best[self.committed.number] = best

    def _save_best(self) -> list[Path]:
        """Write the best model unless it is written; return its file, if there is one."""
        path, number = self._context.run_dir.best_model, self._stopping.best
        if number not in self._best:
            return []
        if self._best_written != number:
            self._save_model(path, self._best[number])
            self._best_written = number
        return [path]

    def save(self) -> None:
        """Write models and a checkpoint; the row holds the seconds up to the checkpoint's end."""
        start, number = perf_counter(), self.committed.number
        identity = with_environments(self._sealed.identity, self._workers.get("actors", ()))
        if clock := self._context.clock:
            self.committed = replace(self.committed, costs=clock.costs.counter.counts())
        model, regular = self._context.run_dir.model, self._stopping.regular_best
        self._save_model(model, self._deployed())
        if regular in self._best:
            is_this_round = regular == number
            best = Best(regular, None if is_this_round else self._best[regular])
            self.committed = replace(self.committed, best=best)
        self._sealed = replace(self._sealed, run=self.committed, identity=identity)
        self._context.states.force_to_disk(self.committed.versions, self._on_disk)
        self._checkpoints.save(
            self._sealed,
            lambda folder: self.recorder.seal(folder, number, perf_counter() - start),
            models=[model, *self._save_best()],
        )
        self._on_disk = number

    @delay_signals()
    def save_last(self) -> None:
        """Checkpoint the committed rounds when the run ends early.

        It does not checkpoint them if a method has changed their state in place since.
        """
        note = self._context.listener.note
        try:
            self._context.run_dir.check_place()
            number = self.committed.number
            if number and number not in self._checkpoints.numbers() and self.recorder.rows:
                if checksums(flatten(self.committed.state.groups)) != self._sums:
                    note("the last rounds are not checkpointed: their state is changed in place")
                else:
                    self.save()
            self.recorder.close()
        except RunError as error:
            note(f"the last rounds could not be checkpointed: {error}")

    def finish(self) -> Result:
        """Write the summary; return the finished run."""
        run_dir = self._context.run_dir
        run_dir.check_place()
        self.recorder.close()
        self._context.updates.clear()
        settings = self._settings
        every, rounds = settings.evaluation.every, self.last_round
        recorded = self.recorder.rows, self.recorder.declared
        summary = summarise(*recorded, settings.target_accuracy, every=every, rounds=rounds)
        scored = self._stopping.metric and self._stopping.metric.scored
        best = self._stopping.best if scored and scored.samples == HOLDOUT.samples else None
        summary |= of_local_tests(*recorded, every, rounds, best)
        summary |= self._context.evaluator.held_out_samples
        summary |= {"best_round": self._stopping.best or None, "stopped_by": self._reason}
        if privacy := self._context.privacy:
            summary |= privacy.summary(len(self.recorder.rows))
        if self._sealed.forced:
            summary["forced"] = [*self._sealed.forced]
        write_json(run_dir.summary, summary)
        if said := deadline_note(self.recorder.rows, settings.clock):
            self._context.listener.note(said)
        self._context.listener.finished(summary)
        return Result(run_dir.path, summary, self.recorder.table(), dict(self._deployed()))
