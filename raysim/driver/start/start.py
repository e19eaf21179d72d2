"""Start of a run: checks all of its parts, then opens executor and run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import Any

from raysim.api.columns import Scored, undeclared
from raysim.api.components import call, called
from raysim.api.method import Method
from raysim.api.next_state import ASKED, given_state
from raysim.api.own_loop import TASK_LOOP, loop_of
from raysim.api.scoring import Scoring
from raysim.api.selection import Selection
from raysim.combinations import check_rules
from raysim.config import EvaluationSettings, Settings
from raysim.driver.analyses.run_analyses import Analyses
from raysim.driver.asynchronous.opening import check_asynchrony
from raysim.driver.clock.clock import open_clock
from raysim.driver.evaluation.evaluation import Evaluator
from raysim.driver.evaluation.weights import weights_by_client
from raysim.driver.listeners.listener import Listener
from raysim.driver.listeners.ray_metrics_listener import exported
from raysim.driver.listeners.trackers import tracked
from raysim.driver.privacy.accounting import with_accounted_noise
from raysim.driver.privacy.checks import accounting_for
from raysim.driver.rounds.local_values import check_values
from raysim.driver.rounds.rates import check_rates, rates_of
from raysim.driver.rounds.rehearsal import rehearse
from raysim.driver.rounds.run import Run
from raysim.driver.rounds.selecting import RoundSelection
from raysim.driver.start.base import with_base
from raysim.driver.start.checks.preflight import check_actors, check_space, initial_checkpoint
from raysim.driver.start.context import CheckedRun, Rounds, RunContext
from raysim.driver.start.identity import identity_of, not_comparable
from raysim.driver.start.parts import RunParts
from raysim.driver.start.resume_checks import (
    check_same_components,
    check_same_task,
    finished_run,
    note_samples,
)
from raysim.driver.uploads.channel import by_owner, first_states
from raysim.driver.uploads.order import ORDER
from raysim.errors import RunError, SettingsError
from raysim.execution.process import threads_of
from raysim.execution.ray_runtime import open_executor, ray_runtime
from raysim.federation.federation import Federation
from raysim.storage.checkpoints import Checkpoints
from raysim.storage.client_states import ClientStates
from raysim.storage.lock import is_locked
from raysim.storage.plugins import Plugins
from raysim.storage.run_directory import LOCKED, RunDirectory
from raysim.storage.trace import Stopwatch
from raysim.user_input import resume_advice


def drive(
    settings: Settings,
    prepare: Callable[[Listener], Federation],
    known_digests: Callable[[], Mapping[str, str]],
    directory: AbstractContextManager[RunDirectory],
    listener: Listener,
    *,
    own_task: bool = False,
    force: bool = False,
) -> Rounds:
    """Start or resume a run.

    The run writes nothing before all checks have passed.

    Args:
        settings: The run's settings.
        prepare: Returns the run's samples, client indices and network.
        known_digests: Returns the digests of the samples by split, to compare them with those of a
            finished run; empty if they are not known.
        directory: Yields the run directory.
        listener: Receives progress and notes.
        own_task: Whether the run has its own task.
        force: Whether to resume although data, versions or machines differ from the checkpoint's.

    Raises:
        RaysimError: a setting, a file or a client does not allow the run.
        KeyboardInterrupt: the run was interrupted; its last committed round is checkpointed.
    """
    with directory as run_dir, run_dir.gone_if_refused(), tracked(settings, listener) as tracking:
        finished = finished_run(run_dir, settings, listener.note)
        if finished and not own_task:
            check_same_components(run_dir, settings)
            note_samples(run_dir, known_digests(), listener.note)
            listener.finished(finished.summary)
            return finished
        checked = check_run(settings, prepare(tracking), run_dir, tracking.note)
        if finished:
            check_same_task(run_dir, checked.identity)
            listener.finished(finished.summary)
            return finished
        for part in not_comparable(checked.identity):
            tracking.note(f"{part}: if this run is interrupted, it resumes only with force=True")
        kept = 0 if run_dir.begun else rehearse(checked)
        check_space(checked.settings, checked.states, checked.initial.state, kept)
        watch = Stopwatch(settings.trace)
        with (
            threads_of(settings.engine),
            ray_runtime(settings.engine) as if_killed,
            closing(open_executor(checked.spec, watch, tracking.note)) as executor,
            run_dir.lock(settings, own_task),
        ):
            if_killed(resume_advice(run_dir.path, own_task=own_task))
            driver: dict[str, Any] = {"watch": watch, "executor": executor}
            driver["listener"] = exported(tracking)
            driver |= {"run_dir": run_dir, "own_task": own_task, "force": force}
            run = Run(RunContext(**vars(checked), **driver))
            try:
                return (yield from run.rounds())
            finally:
                run.commits.recorder.close_events()


@contextmanager
def reserved_directory(
    settings: Settings, listener: Listener, *, own_task: bool, force: bool
) -> Iterator[RunDirectory]:
    """Yield the run directory: `out`, which may hold a part of the run, or a new one.

    Raises:
        RunError: the directory holds another run, or sources that have changed.
    """
    with RunDirectory.reserved(settings.out, settings.method.title) as path:
        run_dir = RunDirectory(path)
        plugins = Plugins(run_dir.path)
        plugins.check_recorded(force)
        plugins.check(settings.to_dict(), force=True)
        run_dir.check(settings, own_task=own_task, note=listener.note)
        yield run_dir


def is_finished(settings: Settings, note: Callable[[str], None]) -> bool:
    """Check `out` as the start of a run does; return whether it holds this run, finished.

    Args:
        settings: The run's settings.
        note: Called with the line on a finished run.

    Raises:
        RunError: it holds another run or a part of this one, or cannot be written.
    """
    with reserved_directory(settings, Listener(), own_task=False, force=False) as run_dir:
        if finished_run(run_dir, settings, note):
            check_same_components(run_dir, settings)
            return True
        if is_locked(run_dir.path):
            raise RunError(f"out={run_dir.path}: {LOCKED}")
        newest, _ = Checkpoints(run_dir.checkpoints).newest_whole(settings.clients, lambda _: None)
        if newest:
            raise RunError(
                f"out={run_dir.path}: holds an unfinished run after round {newest.run.number} of"
                f" {settings.rounds}: raysim resume {run_dir.path}"
            )
        return False


def check_run(
    settings: Settings,
    federation: Federation,
    run_dir: RunDirectory,
    note: Callable[[str], None],
) -> CheckedRun:
    """Check the parts of a run without writing anything.

    Args:
        settings: The run's settings.
        federation: The run's samples, client indices and network.
        run_dir: The run directory.
        note: Called with lines for the user.

    Raises:
        RaysimError: a setting or a file does not allow the run.
    """
    settings, federation = with_loop(settings, federation)
    check_rules(settings)
    states = ClientStates(run_dir.states.absolute())
    federation = _with_test_samples(settings, federation, note)
    network, initial = initial_checkpoint(settings, federation)
    federation = with_base(settings, federation, network, run_dir)
    left, sizes = given_state(initial.state), federation.training_sizes
    federation = federation.with_objective(settings.local).for_network(network)
    parts = RunParts(settings, network, initial, sizes)
    check_actors(parts, note)
    privacy = accounting_for(parts, note)
    settings = with_accounted_noise(settings, privacy)
    initial = initial.keeping(by_owner(first_states(settings.stages)))
    parts = RunParts(settings, network, initial, sizes)
    evaluator = Evaluator(settings, federation, network)
    analyses = Analyses(settings, federation, network, initial, note)
    check_asynchrony(parts)
    clock = open_clock(settings, federation, network, states)
    for concern in ORDER:
        concern.check(parts, federation, note)
    weights = weights_by_client(settings, federation)  # before the digest of their file
    checked = CheckedRun(
        settings=settings,
        federation=federation,
        network=network,
        initial=initial,
        sizes=sizes,
        states=states,
        evaluator=evaluator,
        analyses=analyses,
        identity=identity_of(settings, federation, network, analyses.reference, privacy),
        clock=clock,
        privacy=privacy,
        weights=weights,
    )
    _check_first_round(checked)
    for line in notes_on(parts):
        note(line)
    left.check_left(ASKED, called(settings.method))
    return checked


def with_loop(settings: Settings, federation: Federation) -> tuple[Settings, Federation]:
    """Return a run with the user's own training loop, if there is one, in both.

    Raises:
        SettingsError: settings and task have one each.
    """
    named = settings.local.train
    if federation.loop is None:
        return settings, replace(federation, loop=loop_of(named)) if named else federation
    if named:
        raise SettingsError(f"local.train={named}: the task has a loop, too; leave out {TASK_LOOP}")
    local = settings.local.model_copy(update={"train": TASK_LOOP})
    return settings.model_copy(update={"local": local}), federation


def _check_first_round(checked: CheckedRun) -> None:
    """Check the rates, the local values and, in virtual time, the selection of the first round.

    Without a clock, the rehearsal runs the selection.

    Raises:
        SettingsError: a column that they read is missing, or the selection fails.
    """
    settings, evaluated = checked.settings, checked.evaluator.skipped.figures
    check_rates(rates_of(settings), evaluated)
    check_values(settings, evaluated)
    if checked.clock and not settings.asynchrony:
        RoundSelection.of(settings, checked.sampling(checked.initial), checked.clock)


def _with_test_samples(
    settings: Settings, federation: Federation, note: Callable[[str], None]
) -> Federation:
    """Return a federation in which evaluation and server have their own samples."""
    for said in (
        _of_local_test(settings.evaluation, federation),
        _of_undeclared(federation.scoring),
    ):
        if said:
            note(said)
    federation = federation.with_root(
        settings.aggregation.root_samples, settings.seed, settings.participants
    )
    federation = federation.with_local_test(settings)
    new, local_test = settings.participants.new, federation.local_test
    if len(new) and local_test and not local_test.indices.sizes[new].any():
        note(
            f"evaluation.new_clients={settings.evaluation.new_clients}: none of these {len(new)}"
            " clients has samples to be tested on; the columns new_... are left out"
        )
    federation = federation.with_holdout(settings.evaluation.holdout, settings.seed)
    return federation if settings.evaluation.test else federation.without_test()


def _of_undeclared(scoring: Scoring) -> str:
    """Return a line on metrics of a task that lack a declaration; "" if none does."""
    scores = {n: score for n, score in scoring.scores.items() if score.better is None}
    how = [undeclared(score.of(Scored("", name))) for name, score in scores.items()]
    return f"metric {', '.join(scores)}: {how[0]}" if how else ""


def _of_local_test(evaluation: EvaluationSettings, federation: Federation) -> str:
    """Return a line on an unexpected effect of `evaluation.local_test`; "" without one."""
    if not evaluation.local_test:
        return ""
    if not (evaluation.test or evaluation.holdout):
        return (
            "evaluation.test=false: clients' own test samples are not trained on, and nothing is"
            f" scored on them, evaluation.local_test={evaluation.local_test}"
        )
    if federation.local_test:
        return (
            "clients have their own test samples and are tested on these:"
            f" evaluation.local_test={evaluation.local_test} cuts none"
        )
    return ""


def notes_on(parts: RunParts) -> Iterator[str]:
    """Yield the notes of method and selection before a run starts.

    Args:
        parts: The run's parts.

    Raises:
        SettingsError: a component fails.
    """
    settings = parts.settings
    yield from _lines(settings.method, call(settings.method, Method.notes, parts.network))
    if type(settings.selection).notes is Selection.notes:
        return
    aggregation = settings.aggregation
    component_weighting = aggregation.weights or (parts.first and parts.first.weighting)
    weighting: Any = (
        "uniform" if aggregation.sees_updates else component_weighting or settings.weighting
    )
    selection, samples = settings.selection, settings.participants.of(parts.sizes)
    lines = call(selection, Selection.notes, samples, settings.cohort_size, weighting)
    yield from _lines(selection, lines)


def _lines(component: Method | Selection, lines: Sequence[str]) -> Iterator[str]:
    """Yield the notes of a component after the setting that names it."""
    yield from (f"{called(component)}: {line}" for line in lines)
