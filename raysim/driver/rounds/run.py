"""Rounds of a run: each is run, evaluated and committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from time import perf_counter

from raysim.api.components import called
from raysim.api.method import Metrics, Passes, Round, ServerState
from raysim.api.next_state import ASKED, given_state
from raysim.api.own_loop import named_loop
from raysim.api.rules import Reduced
from raysim.api.scoring import PERSONAL
from raysim.combinations import Seen, check_rules
from raysim.config import Settings
from raysim.driver.analyses.round_analyses import RoundAnalyses
from raysim.driver.asynchronous.opening import asynchronous_rounds
from raysim.driver.asynchronous.rounds import AsynchronousRounds
from raysim.driver.clock.clock import VirtualRound
from raysim.driver.clock.lost import noted_if_lost
from raysim.driver.evaluation.evaluation import Evaluation
from raysim.driver.evaluation.own_evaluation import own_figures
from raysim.driver.listeners.listener import Started
from raysim.driver.rounds.commits import Commits
from raysim.driver.rounds.local_values import RoundValues
from raysim.driver.rounds.method_rounds import (
    RunPass,
    passes_of,
    round_inputs,
    run_round,
    run_without_clients,
)
from raysim.driver.rounds.passes import PassContext, RoundRunner
from raysim.driver.rounds.rates import rate_figures, rates_of, with_rates
from raysim.driver.rounds.round_log import RoundLog
from raysim.driver.rounds.selecting import RoundSelection
from raysim.driver.start.base import kept_base
from raysim.driver.start.context import Rounds, RunContext
from raysim.driver.start.stacking import decide_stack_size
from raysim.driver.uploads.channel import Channel, by_owner, of_stage, states_of
from raysim.driver.uploads.client_figures import rows_beside
from raysim.driver.uploads.dispatch import Dispatch, PassHook
from raysim.driver.uploads.downlink import Downlink
from raysim.driver.uploads.order import ORDER
from raysim.errors import DamagedStateError, MachineError, MovedError
from raysim.numbers.tensors import Groups
from raysim.process.exits import with_hint
from raysim.samples.local_cut import without_cut
from raysim.storage.checkpoints import model_metadata
from raysim.storage.client_models import ClientModels
from raysim.storage.client_states import owner_of, updated
from raysim.storage.column_names import check_metrics, check_names
from raysim.storage.declared import deploys_own_models
from raysim.storage.recorder import Row
from raysim.storage.run_state import RunState
from raysim.storage.summary import is_counted
from raysim.storage.trace import DRIVER

NO_METRICS: Metrics = {}


@dataclass(frozen=True)
class OpenRound:
    """Inputs and parts of a round that has begun.

    Attributes:
        now: The input of the method's round.
        has_clients: True if clients were selected, or if rounds overlap.
        runner: Runs the passes of the round.
        run: Runs one pass.
        analyses: The round's analyses.
        selection: The selection of the round's clients; None if rounds overlap.
        rates: The learning rates, columns of `metrics.parquet`.
        values: The values of local training.
        clock: The round in virtual time; None without a clock.
        channel: The stages of the channel; None if it has none.
        downlink: The down-link; None if it has no stages.
        models: Files of the clients' networks; None unless they are kept.
        is_due: Whether the round is evaluated.
    """

    now: Round
    has_clients: bool
    runner: RoundRunner
    run: RunPass
    analyses: RoundAnalyses
    selection: RoundSelection | None
    rates: Row
    values: RoundValues
    clock: VirtualRound | None
    channel: Channel | None
    downlink: Downlink | None
    models: ClientModels | None
    is_due: bool

    @property
    def settings(self) -> Settings:
        """The run's settings."""
        return self.runner.context.settings

    def figures(self) -> Row:
        """Return the learning rates and other local values, columns of `metrics.parquet`."""
        return {**self.rates, **self.values.figures()}


class Run:
    """Rounds of one run.

    Attributes:
        commits: The committed rounds.
        few: In a rehearsal, the number of clients that train in place of all; 0 otherwise.
    """

    def __init__(self, context: RunContext, *, few: int = 0) -> None:
        self.context, self.few = context, few
        self.settings = context.settings
        self.clients = len(context.federation.training_sizes)
        self.commits = Commits(context)

    def rounds(self) -> Rounds:
        """Run from the last checkpoint to the end.

        Raises:
            RaysimError: a client, a disk or the cluster fails; the run has checkpointed the
                committed rounds.
        """
        context, commits = self.context, self.commits
        commits.restore()
        held = without_cut(context.federation.client_indices)
        kept = kept_base(context.settings, context.federation, context.network)
        context.run_dir.save_base(kept)
        context.run_dir.save_partition(held, context.federation.names)
        if context.federation.preparation:
            context.run_dir.save_preparation(context.federation.preparation)
        context.run_dir.save_environment()
        try:
            self._decide_stack_size()
            context.listener.started(self._started())
            while not commits.are_done:
                self._commit(*self.done_round(commits.committed))
                if (yield {**commits.recorder.rows[-1]}):
                    commits.end()
        except MovedError:
            raise
        except DamagedStateError as error:
            context.run_dir.check_place()
            # A checkpoint now would seal the damaged state and push out one without it.
            commits.recorder.close()
            raise DamagedStateError(
                f"{error}; restore it, or {context.resume_advice()}, which goes back to a"
                " checkpoint from before the damage if there is one"
            ) from error
        except (MachineError, MemoryError, OSError) as error:
            context.run_dir.check_place()
            commits.save_last()
            cause = str(error) or type(error).__name__
            raise MachineError(cause, f"; fix this, then {context.resume_advice()}") from error
        except KeyboardInterrupt as stop:
            commits.save_last()
            raise with_hint(stop, self._how_to_resume()) from None
        except BaseException:
            commits.save_last()
            raise
        return commits.finish()

    def _how_to_resume(self) -> str:
        """Return the message of an interruption in Python."""
        done = f"interrupted after {self.commits.committed.number} of {self.settings.rounds} rounds"
        task = ", task=task" if self.context.own_task else ""
        return f"{done}; resume with: raysim.resume({str(self.context.run_dir.path)!r}{task})"

    def _decide_stack_size(self) -> None:
        """Decide the stack size unless the checkpoint has one."""
        context, committed = self.context, self.commits.committed
        if committed.stack_size is None:
            size = decide_stack_size(
                self.settings,
                context.federation,
                context.network,
                committed,
                values=RoundValues.of(self.settings, context.sampling(committed), committed),
                describe=context.executor.describe,
                note=context.listener.note,
            )
            self.commits.committed = replace(committed, stack_size=size)

    def _started(self) -> Started:
        settings, score = self.settings, self.commits.score
        scored = score and score.scored
        if deploys_own_models(settings) and score and scored and scored.model != PERSONAL:
            self.context.listener.note(
                "clients deploy their own models, which nothing evaluates:"
                f" {score.name} is that of the global model; evaluation.local_test or"
                " evaluation.holdout evaluates theirs"
            )
        return Started(
            path=self.context.run_dir.path,
            method=settings.method.title,
            round_number=self.commits.committed.number,
            rounds=settings.rounds,
            cohort=settings.cohort_size,
            clients=self.clients,
            target=settings.target_accuracy,
            score=score.name if score else None,
            columns=self.context.declared,
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
            updates=context.updates,
            drop_advice=context.resume_advice(on_client_error="drop"),
            named=context.federation.named,
            weights=context.weights,
            stack_size=self.commits.committed.stack_size or 1,
        )

    @cached_property
    def _client_models(self) -> ClientModels | None:
        """Files of the clients' networks; None unless `keep_clients` asks for them."""
        if not self.settings.keep_clients:
            return None
        folder = self.context.run_dir.client_models.absolute()
        return ClientModels(folder, model_metadata(self.context.identity))

    @cached_property
    def _asynchronous(self) -> AsynchronousRounds | None:
        """Asynchronous rounds from the last checkpoint on; None if rounds do not overlap."""
        if self.few:
            return None
        return asynchronous_rounds(self.context, self._passes, self.commits.committed)

    def _commit(self, after: RunState, row: Row, log: RoundLog, evaluation: Evaluation) -> None:
        """Record a round and, if due, checkpoint it."""
        self.context.run_dir.check_place()
        self.commits.note_workers()
        if self._client_models:
            self._client_models.keep_only(after.number)
        self.commits.commit(after, row, log, evaluation)

    def done_round(self, before: RunState) -> tuple[RunState, Row, RoundLog, Evaluation]:
        """Run and evaluate the round after a committed state, without committing it.

        Raises:
            RaysimError: the method, a client or another component fails.
        """
        start = perf_counter()
        context, number = self.context, before.number + 1
        left = [given_state(before.state)]
        begun = self._begin(before)
        runner, clock = begun.runner, begun.clock
        state, metrics = before.state, NO_METRICS
        for attempt in self._attempts(before, begun):
            with noted_if_lost(context.listener.note):
                state, metrics = run_round(*attempt, partial(self._check, begun, []))
                break
        left.append(given_state(state))
        self._finish_passes(runner, number)
        seconds = perf_counter() - start
        spans = runner.log.spans | {DRIVER: context.watch.take()}
        after, selected = self._after(before, state, begun)
        evaluation, evaluation_seconds = self._evaluate(before, after, begun)
        of_driver: Row = {
            "round": number,
            **runner.log.figures(),
            **(clock.figures() if clock else {}),
            **evaluation.figures,
            **begun.figures(),
            "seconds": seconds,
            "evaluation_seconds": evaluation_seconds,
            "checkpoint_seconds": 0.0,
        }
        row = self._whole_row(of_driver, begun, selected, metrics)
        if self.commits.trace:
            workers = len(context.executor.describe()["actors"])
            evaluated = {**evaluation.spans, DRIVER: context.watch.take()}
            row |= self.commits.trace.round(number, seconds, workers, spans, evaluated)
        counted = self._as_in_longer_runs(row, evaluation)
        after = with_rates(rates_of(self.settings), begun.values.after(after, counted), counted)
        for attempt_state in left:
            attempt_state.check_left(ASKED, called(self.settings.method))
        return after, row, runner.log, evaluation

    def _check(
        self,
        begun: OpenRound,
        means: list[Groups],
        dispatch: Dispatch,
        reduced: Reduced | None = None,
    ) -> None:
        """Check a pass against the rules, when the method yields it and when its result arrives.

        Args:
            begun: The round.
            means: The means of the round's earlier passes; the method appends those of this pass.
            dispatch: The pass.
            reduced: The result; None before it arrives.

        Raises:
            RuleError: the pass breaks a rule.
        """
        settings, runner, cohort = self.settings, begun.runner, begun.now.cohort
        seen = Seen(settings, dispatch, cohort, not runner.passes, sum(map(bool, means)))
        if reduced is None:
            check_rules(settings, "pass", seen)
            return
        means.append(reduced.means)
        of_method = [name for name in reduced.scalars if not owner_of(name, settings.keepers)]
        told = {name: of_stage(name, reduced.scalars) for name in settings.keepers}
        seen = replace(
            seen,
            means=reduced.means,
            rows=rows_beside(reduced),
            numbers=of_method,
            of_stages={name: min(numbers) for name, numbers in told.items() if numbers},
            keeps=bool(runner.written),
        )
        check_rules(settings, "result", seen)

    def _finish_passes(self, runner: RoundRunner, number: int) -> None:
        """Finish clients under way before an analysis, and delete obsolete client states."""
        if self._asynchronous and self.context.analyses.chosen and self._is_due(number):
            self._asynchronous.train_all(runner)
        runner.finish()
        self.context.states.delete(runner.obsolete)

    def _attempts(
        self, before: RunState, begun: OpenRound
    ) -> Iterator[tuple[Passes, RunPass, Sequence[PassHook]]]:
        """Yield a round's passes, their runner and their hooks, for each attempt at the round.

        If a round has no clients or is lost, stages that act on empty rounds still run: without
        their noise, others could tell that no clients were selected.
        """
        settings = self.settings
        hooks = [(row, hook) for row in ORDER if (hook := row.hook(begun))]
        if begun.has_clients:
            passes = passes_of(settings, begun.now, before.state)
            yield passes, begun.run, [hook for _, hook in hooks]
        if any(stage.acts_on_empty_rounds for stage in settings.stages.values()):
            passes = passes_of(settings, replace(begun.now, cohort=()), before.state)
            left = [hook for row, hook in hooks if row.on_empty_rounds]
            yield passes, run_without_clients, left

    def _whole_row(
        self, of_driver: Row, begun: OpenRound, selected: Metrics, metrics: Metrics
    ) -> Row:
        """Return a row with epsilon and the metrics of stages, selection and method.

        Raises:
            SettingsError: a metric is no number, or has the name of another one.
        """
        privacy, row, number = self.context.privacy, dict(of_driver), of_driver["round"]
        if privacy:
            row |= privacy.figures(number, due=self._is_due(number))
        if begun.channel:
            check_metrics(begun.channel.metrics, row, "channel")
            row |= begun.channel.metrics
        check_metrics(selected, row, called(self.settings.selection))
        check_metrics(metrics, {**row, **selected}, called(self.settings.method))
        return {**row, **selected, **metrics}

    def _begin(self, before: RunState) -> OpenRound:
        """Begin the next round."""
        context, overlapping = self.context, self._asynchronous
        tick = before.ticks or 0
        sampling = context.sampling(before, tick)
        values = RoundValues.of(self.settings, sampling, before)
        needed_from = self.commits.needed_from
        committed = before.number, before.state, before.versions
        last = before.kept("aggregation")
        runner = RoundRunner(self._passes, *committed, needed_from, values, last)
        if before.number == 0:
            runner.log.sent_before = self.clients * context.federation.shared_bytes
        clock = selection = None
        if overlapping:
            run: RunPass = partial(overlapping.run, runner)
            cohort = overlapping.cohort(before.number)
        else:
            run = runner.run
            if context.clock:
                clock = VirtualRound.after(context.clock, runner, tick)
            selection = RoundSelection.of(self.settings, sampling, context.clock, clock)
            if self.few:
                selection = replace(selection, selected=selection.selected[: self.few])
            cohort = selection.cohort
        if self.few:
            cohort = runner.few = cohort or tuple(self.settings.participants.listed[:1])
        inputs = (self.settings, context.network, before)
        note = context.listener.note
        now = round_inputs(*inputs, sizes=context.sizes, note=note, cohort=cohort)
        has_clients = bool(cohort or overlapping)
        analyses = RoundAnalyses(context.analyses, runner)
        channel, downlink = self._channel(now, before), self._downlink(before)
        return OpenRound(
            *(now, has_clients, runner, run, analyses, selection),
            *(rate_figures(rates_of(self.settings), before), values, clock, channel, downlink),
            *(self._client_models, self._is_due(before.number + 1)),
        )

    def _channel(self, now: Round, before: RunState) -> Channel | None:
        stages = self.settings.stages
        return Channel(self.settings, stages, now, states_of(before, stages)) if stages else None

    def _downlink(self, before: RunState) -> Downlink | None:
        stages = self.settings.down_stages
        return Downlink(self.settings, self.context.network, before) if stages else None

    def _after(
        self, before: RunState, state: ServerState, begun: OpenRound
    ) -> tuple[RunState, Metrics]:
        """Return the state after the passes of a round, and the selection's metrics."""
        overlapping, metrics = self._asynchronous, NO_METRICS
        kept = {"aggregation": begun.runner.updates.last}
        if begun.selection:
            kept["selection"], metrics = begun.selection.after(begun.runner.log)
        if begun.channel:
            kept |= by_owner(begun.channel.states)
        after = replace(
            before,
            number=before.number + 1,
            state=state,
            versions=updated(before.versions, begun.runner.written),
            in_flight=overlapping.commit(before.number) if overlapping else None,
            ticks=begun.clock.tick if begun.clock else before.ticks,
            downlink=begun.downlink.state if begun.downlink else before.downlink,
        )
        return after.keeping(kept), metrics

    def _evaluate(
        self, before: RunState, after: RunState, begun: OpenRound
    ) -> tuple[Evaluation, float]:
        """Evaluate and analyse a round if due; return the evaluation and its duration [s]."""
        context, analyses, start = self.context, begun.analyses, perf_counter()
        if not self._is_due(after.number):
            return context.evaluator.skipped, 0.0
        evaluate = partial(context.evaluator.evaluate, context.executor, begun.values)
        with context.watch("evaluation"):
            trained = begun.runner.log.losses(begun.now.everyone)
            evaluation = evaluate(after.state, after, trained)
            figures = {**evaluation.figures, **analyses.trained_figures()}
            log = begun.runner.log
            check_names(
                log.more, (), figures, f"{named_loop(self.settings.local.train)}: the number"
            )
            taken = {*figures, *log.figures()}
            figures |= own_figures(context, after.state, after.number, taken)
            evaluation = replace(evaluation, figures=figures)
            if not begun.has_clients:  # no training to measure
                return evaluation, perf_counter() - start
            columns = analyses.columns(begun.now, before, after, evaluation, evaluate)
            context.states.delete(analyses.obsolete)
        return replace(evaluation, analyses=columns), perf_counter() - start

    def _as_in_longer_runs(self, row: Row, evaluation: Evaluation) -> Row:
        """Return a row without an evaluation that only the last round has.

        A run that goes on longer does not evaluate this round.
        """
        if is_counted(row["round"], self.settings.evaluation.every, 0):
            return row
        kept = {name: row[name] for name in row.keys() - evaluation.figures.keys()}
        return {**kept, **self.context.evaluator.skipped.figures}

    def _is_due(self, number: int) -> bool:
        """Return whether a round, counted from 1, is evaluated."""
        return is_counted(number, self.settings.evaluation.every, self.commits.last_round)
