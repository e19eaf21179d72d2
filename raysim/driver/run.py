"""The run: restores a run directory, runs rounds, commits them, and finishes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any

from raysim.core.components import calling
from raysim.core.errors import DamagedStateError, MachineError, RunError
from raysim.core.exits import delay_signals
from raysim.core.method import Metrics, Round, ServerState
from raysim.driver.analyses.round_analyses import RoundAnalyses
from raysim.driver.asynchronous.opening import asynchronous_rounds
from raysim.driver.asynchronous.rounds import AsynchronousRounds
from raysim.driver.context import Result, RunContext
from raysim.driver.evaluation import Evaluation
from raysim.driver.identity import accepted, with_environments
from raysim.driver.listener import Started
from raysim.driver.passes import PassContext, RoundRunner
from raysim.driver.round_inputs import checked_next, round_inputs
from raysim.driver.stacking import decide_stack_size
from raysim.driver.virtual.clock import VirtualRound
from raysim.driver.virtual.lost import noted_if_lost
from raysim.execution.process import release_freed_memory
from raysim.storage.atomic import write_json
from raysim.storage.checkpoints import Checkpoint, Checkpoints, save_tensors
from raysim.storage.client_states import updated
from raysim.storage.recorder import Row, RunRecorder
from raysim.storage.summary import summarise
from raysim.storage.trace import DRIVER, TraceWriter


class Run:
    """The rounds of one run."""

    def __init__(self, context: RunContext) -> None:
        self.context, self.settings = context, context.settings
        self.clients = len(context.federation.training_sizes)
        self.checkpoints = Checkpoints(context.run_dir.checkpoints, context.run_dir.config_values)
        self.recorder = RunRecorder(context.run_dir.path, self.settings.to_dict())
        self.trace: TraceWriter | None = None
        self.workers: dict[str, Any] = {}
        self.committed = replace(context.initial, identity=context.identity)
        self._on_disk = 0
        """Round from which on client states are not forced to disk yet."""

    def restore(self) -> None:
        """Go back to the newest whole checkpoint; delete everything that is later than it.

        Rolled back are: checkpoints (damaged ones are renamed), client states, the rows of rounds
        and clients, and TensorBoard events. The committed state, the versions of the clients'
        states, their last losses and the size of a stack come from the checkpoint.
        """
        context = self.context
        found = self.checkpoints.latest(self.clients, context.listener.note, self._check_files)
        if found:
            self.committed = accepted(found, context)
            # A rolled-back run has the model of a later round, schema 0 an earlier one.
            save_tensors(context.run_dir.model, self.settings.method.deployed(found.state))
        number = self.committed.number
        on_disk = context.states.roll_back(number, self.clients)
        if found and found.tables is None:
            self.committed = replace(self.committed, versions=on_disk)
        self._on_disk = number
        self.recorder.open(number, self.committed.tables)
        if self.settings.trace:
            self.trace = TraceWriter(context.run_dir.path, number + 1)

    def _check_files(self, found: Checkpoint) -> None:
        """Check the files outside a checkpoint's folder that it seals."""
        self.context.states.check(found.versions)
        if found.tables is not None:
            self.recorder.check(found.tables)

    def rounds(self) -> Generator[Row, None, Result]:
        """Run from the last checkpoint to the end; yield the row of each committed round.

        Raises:
            RaysimError: a client, a disk or the cluster failed; committed rounds are checkpointed.
        """
        context = self.context
        self.restore()
        context.run_dir.save_partition(context.federation.client_indices)
        context.run_dir.save_environment()
        try:
            self._decide_stack_size()
            context.listener.started(self._started())
            while not self._is_done():
                self._round(self.committed)
                yield {**self.recorder.rows[-1]}
        except DamagedStateError as error:
            # A checkpoint now would seal the damaged state, and push out one that has none.
            self.recorder.close()
            raise DamagedStateError(
                f"{error}; restore it, or type: raysim resume {context.run_dir.path}, which goes"
                " back to a checkpoint before it was written if there is one"
            ) from error
        except (MachineError, MemoryError, OSError) as error:
            self._save_committed()
            cause = str(error) or type(error).__name__
            hint = f"fix this, then type: raysim resume {context.run_dir.path}"
            raise MachineError(f"{cause}; {hint}") from error
        except BaseException:
            self._save_committed()
            raise
        return self._finish()

    def _decide_stack_size(self) -> None:
        """Decide how many clients are stacked, once in a run: the checkpoint seals it."""
        if self.committed.stack_size is None:
            context = self.context
            size = decide_stack_size(
                self.settings,
                context.federation,
                context.network,
                self.committed,
                describe=context.executor.describe,
                note=context.listener.note,
            )
            self.committed = replace(self.committed, stack_size=size)

    def _started(self) -> Started:
        settings = self.settings
        return Started(
            path=self.context.run_dir.path,
            method=settings.method.title,
            round_number=self.committed.number,
            rounds=settings.rounds,
            cohort=settings.cohort_size,
            clients=self.clients,
            target=settings.target_accuracy,
        )

    @cached_property
    def _passes(self) -> PassContext:
        context = self.context
        return PassContext(
            settings=self.settings,
            sizes=context.federation.training_sizes,
            executor=context.executor,
            watch=context.watch,
            listener=context.listener,
            errors=context.run_dir.errors,
            stack_size=self.committed.stack_size or 1,
        )

    @cached_property
    def _asynchronous(self) -> AsynchronousRounds | None:
        """The rounds, where they overlap; from the last checkpoint on."""
        return asynchronous_rounds(self.context, self._passes, self.committed)

    def _round(self, before: Checkpoint) -> None:
        """Run, evaluate, record and, where it is due, checkpoint one round."""
        start, method = perf_counter(), self.settings.method
        context, number = self.context, before.number
        needed_from = next(iter(self.checkpoints.numbers()), number)
        runner = RoundRunner(self._passes, number, before.state, before.versions, needed_from)
        now, analyses, clock = self._begin(before, runner)
        found: tuple[ServerState, Metrics] = (before.state, {})
        with calling(method, "round"), noted_if_lost(context.listener.note):
            found = method.round(now, before.state)
        state, metrics = checked_next(method, found)
        if self._asynchronous and context.analyses.chosen and self._is_due(number + 1):
            self._asynchronous.train_all(runner)
        runner.finish()
        context.states.delete(runner.obsolete)
        seconds, spans = perf_counter() - start, runner.log.spans | {DRIVER: context.watch.take()}
        after = replace(
            before,
            number=number + 1,
            state=state,
            losses=before.losses.copy(),
            versions=updated(before.versions, runner.written),
            in_flight=self._asynchronous.commit(number) if self._asynchronous else None,
        )
        evaluation, evaluation_seconds = self._evaluate(before, after, now, analyses)
        row: Row = {
            "round": after.number,
            **runner.log.figures(),
            **(clock.figures() if clock else {}),
            **evaluation.figures,
            "lr": now.lr,
            "seconds": seconds,
            "evaluation_seconds": evaluation_seconds,
            "checkpoint_seconds": 0.0,
            **metrics,
        }
        if self.trace:
            workers = len(context.executor.describe()["actors"])
            evaluation_spans = {**evaluation.spans, DRIVER: context.watch.take()}
            row |= self.trace.round(after.number, seconds, workers, spans, evaluation_spans)
        self.workers = context.note_workers(self.workers, self.committed)
        self._commit(after, row, runner, evaluation)

    def _begin(
        self, before: Checkpoint, runner: RoundRunner
    ) -> tuple[Round, RoundAnalyses, VirtualRound | None]:
        """Return a round's input, its analyses and, where rounds do not overlap, its clock."""
        context, overlapping = self.context, self._asynchronous
        run = partial(overlapping.run, runner) if overlapping else runner.run
        due = self._is_due(before.number + 1)
        analyses = RoundAnalyses(context.analyses, runner, run, due=due)
        clock = None
        if context.clock and not overlapping:
            clock = context.clock.round(self.recorder, runner, analyses.run)
        now = round_inputs(
            self.settings,
            context.network,
            before,
            sizes=context.federation.training_sizes,
            run=(clock or analyses).run,
            note=context.listener.note,
            cohort=overlapping.cohort(before.number) if overlapping else None,
        )
        now = replace(now, cohort=clock.cohort(now.cohort)) if clock else now
        return now, analyses, clock

    @delay_signals()
    def _commit(
        self, after: Checkpoint, row: Row, runner: RoundRunner, evaluation: Evaluation
    ) -> None:
        for failure in runner.log.dropped:
            self.context.listener.note(
                f"round {after.number}: client {failure.client} was dropped: {failure.cause}"
            )
        self.recorder.add(row, runner.log.columns, evaluation.clients, evaluation.analyses)
        if self.trace:
            self.trace.virtual(after.number, runner.log.columns)
        for client, loss in runner.log.losses().items():
            after.losses[client] = loss
        self.committed = after
        if after.number % self.settings.checkpoint_every == 0 or self._is_done():
            self._save()
        self.recorder.publish(row)
        release_freed_memory()
        self.context.listener.round_done(row)

    def _evaluate(
        self, before: Checkpoint, after: Checkpoint, now: Round, analyses: RoundAnalyses
    ) -> tuple[Evaluation, float]:
        """Evaluate and analyse a round where this is due; return the seconds that it took."""
        start, context = perf_counter(), self.context
        if not self._is_due(after.number):
            return context.evaluator.skipped, 0.0
        evaluate = partial(context.evaluator.evaluate, context.executor)
        with context.watch("evaluation"):
            evaluation = evaluate(after.state, after.versions)
            columns = analyses.columns(now, before, after, evaluation, evaluate)
            context.states.delete(analyses.obsolete)
        return replace(evaluation, analyses=columns), perf_counter() - start

    def _is_due(self, number: int) -> bool:
        """Return whether a round, counted from 1, is evaluated."""
        return number % self.settings.evaluation.every == 0 or number == self.settings.rounds

    def _is_done(self) -> bool:
        target, rows = self.settings.target_accuracy, self.recorder.rows
        accuracy = rows[-1].get("test_accuracy") if rows else None
        reached = target is not None and accuracy is not None and accuracy >= target
        return self.committed.number >= self.settings.rounds or reached

    def _save(self) -> None:
        """Write model and checkpoint; the row has their seconds before the checkpoint is seen."""
        start, number = perf_counter(), self.committed.number
        identity = with_environments(self.committed.identity, self.workers.get("actors", ()))
        self.committed = replace(self.committed, identity=identity)
        deployed = self.settings.method.deployed(self.committed.state)
        save_tensors(self.context.run_dir.model, deployed)
        self.context.states.force_to_disk(self.committed.versions, self._on_disk)
        seal = self.recorder.seal
        self.checkpoints.save(
            self.committed, lambda folder: seal(folder, number, perf_counter() - start)
        )
        self._on_disk = number

    @delay_signals()
    def _save_committed(self) -> None:
        """Checkpoint the committed rounds when the run ends early."""
        try:
            number = self.committed.number
            if number and number not in self.checkpoints.numbers() and self.recorder.rows:
                self._save()
            self.recorder.close()
        except RunError as error:
            self.context.listener.note(f"the last rounds could not be checkpointed: {error}")

    def _finish(self) -> Result:
        deployed = self.settings.method.deployed(self.committed.state)
        self.recorder.close()
        summary = summarise(self.recorder.rows, self.settings.target_accuracy)
        if self.committed.forced:
            summary["forced"] = [*self.committed.forced]
        write_json(self.context.run_dir.summary, summary)
        self.context.listener.finished(summary)
        return Result(self.context.run_dir.path, summary, self.recorder.table(), dict(deployed))
