"""Tuner: assigns trials to slots and reports every evaluation to Optuna."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from raysim.core.errors import MachineError, RunError
from raysim.storage.atomic import write_json
from raysim.tuning.events import add_bytes, describe
from raysim.tuning.folder import StudyFolder
from raysim.tuning.search import Search, best, bytes_sent
from raysim.tuning.slots.pool import SlotPool, open_slots
from raysim.tuning.slots.slot import Report, Slot, SlotLost, finished, machine_failure
from raysim.tuning.storage import RESUME

MAX_LOSSES = 3
"""Lost slots after which a trial has failed."""


@contextmanager
def resumable(search: Search) -> Iterator[None]:
    """Turn failures of database, disk, memory and cluster into an error that says how to go on.

    Raises:
        MachineError: one of them failed; another trial would meet it too.
        RunError: the study was deleted.
    """
    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        raise MachineError(f"{search.storage_failure(error)}; {RESUME}") from error
    except Exception as error:
        if isinstance(error, KeyError) and search.is_deleted():
            raise RunError(
                f"{search.storage}: study {search.study.study_name} was deleted; restore it, or"
                " choose another --out to start anew"
            ) from error
        if (failure := machine_failure(error)) is None:
            raise
        raise MachineError(f"{failure}; {RESUME}") from error


class StudyListener:
    """Callbacks of a study; every method does nothing by default."""

    def started(self, slots: int, done: int, trials: int) -> None:
        """Called when the slots are ready, with the number of slots, done and total trials."""

    def trial_done(self, trial: FrozenTrial, seconds: float) -> None:
        """Called when a trial is completed, pruned or failed."""

    def note(self, text: str) -> None:
        """Called with a note for the user, in one line."""


@dataclass(frozen=True)
class _Running:
    """A trial running in a slot."""

    trial: Trial
    begun: float = field(default_factory=perf_counter)


@dataclass(frozen=True)
class StudyResult:
    """Result of a study.

    Attributes:
        best: The best trial, or the Pareto front.
        presets: Files of their settings for `raysim run`, by trial number.
        busy: Fraction of the slots' time spent in trials while trials remained, without waiting for
            the tuner; None if no trial had to wait for a slot.
    """

    best: list[FrozenTrial]
    presets: dict[int, Path]
    busy: float | None


class Tuner:
    """Runs one study in one folder; trials are the run directories `trials/0000` and so on."""

    def __init__(self, search: Search, out: Path, listener: StudyListener) -> None:
        self.search, self.folder, self.listener = search, StudyFolder(out), listener
        self._running: dict[Slot, _Running] = {}
        self._to_resume: list[Trial] = []
        self._losses: Counter[int] = Counter()

    def run(self, trials: int, jobs: int | None) -> StudyResult:
        """Run trials until the study has the given number.

        Args:
            trials: Total number of trials, including those of earlier calls; at most the points of
                the grid for the grid sampler.
            jobs: Number of slots; None takes as many as fit.

        Raises:
            SettingsError: the slots do not fit on the cluster.
            MachineError: database, disk, memory or cluster failed; no trial has ended by that, and
                the next call resumes the study.
            RunError: the folder is used by another tuner, or belongs to another study.
        """
        if self.search.options.sampler == "grid":
            trials = min(trials, len(self.search.points))
        with resumable(self.search), self.folder.lock(self.search.study):
            self.search.claim()
            self._check_records()
            describe(self.folder.path, self.search.resolved.space, self.search.options.objectives)
            self._to_resume = [
                trial for trial in self.search.running_trials() if not self._is_recorded(trial)
            ]
            settings = self.search.resolved.settings
            with open_slots(settings, jobs, self.listener.note) as slots:
                done = self._trial_count - len(self._to_resume)
                self.listener.started(len(slots), done, trials)
                self._run_trials(slots, trials)
                return self._result(slots.busy)

    def _check_records(self) -> None:
        """Compare completed trials with the run directories that are still there.

        Raises:
            RunError: one has other parameters or values than its run.
        """
        study, folder = self.search.study, self.folder
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            summaries = [trial.user_attrs.get("summary"), folder.summary(trial.number)]
            other = None
            with suppress(RunError, LookupError, TypeError):  # a run that cannot be read any more
                other = folder.other_parameter(trial)
            for found in filter(None, summaries):
                with suppress(LookupError, TypeError):
                    other = other or ("values" * (self.search.values(found) != trial.values))
            if other:
                raise RunError(
                    f"trial {trial.number}: its {other} in {self.search.storage} and in its run"
                    f" {folder.trial(trial.number)} differ; restore the one that is damaged, or"
                    " choose another --out (and --storage, if it is given)"
                )

    def _is_recorded(self, trial: Trial) -> bool:
        """Record a trial whose run is finished, which its tuner did not live to do."""
        folder = self.folder.trial(trial.number)
        if not (folder / "summary.json").exists():
            return False
        if differing := self.folder.other_parameter(trial):
            error = f"{folder} holds a run with another {differing}"
            self.listener.trial_done(self.search.fail(trial, error), 0.0)
        else:
            self.listener.trial_done(self._complete(trial, finished(folder)), 0.0)
        return True

    def _run_trials(self, slots: SlotPool, trials: int) -> None:
        """Run trials until the study has the given number."""
        while True:
            while slots.has_free() and (trial := self._next(trials)):
                self._start(slots, trial)
            if not self._running and not self._remain(trials):
                return
            if (found := slots.wait()) is None:
                continue
            slot, report = found
            running = self._running.pop(slot)
            if isinstance(report, SlotLost):
                done = self._handle_loss(running.trial, report)
            else:
                done = self._handle_report(slots, slot, running, report)
            if done:
                self.listener.trial_done(done, perf_counter() - running.begun)

    @property
    def _trial_count(self) -> int:
        """Number of trials in the study, in any state."""
        return len(self.search.study.get_trials(deepcopy=False))

    def _remain(self, trials: int) -> bool:
        """Return whether trials remain to be started."""
        return bool(self._to_resume) or self._trial_count < trials

    def _next(self, trials: int) -> Trial | None:
        if self._to_resume:
            return self._to_resume.pop(0)
        return self.search.ask() if self._trial_count < trials else None

    def _start(self, slots: SlotPool, trial: Trial) -> None:
        """Start a trial in a free slot, from its checkpoint if it has one."""
        values = trial.params | {"out": str(self.folder.trial(trial.number))}
        settings = self.search.resolved.settings.override(values)
        self._running[slots.start(settings, self.search.prunes)] = _Running(trial)

    def _handle_report(
        self, slots: SlotPool, slot: Slot, running: _Running, report: Report
    ) -> FrozenTrial | None:
        """Process a slot's report; return the trial if it has ended.

        Raises:
            MachineError: disk, memory or cluster failed; the trial stays running.
        """
        search, trial = self.search, running.trial
        if report.machine_error is not None:
            raise MachineError(f"trial {trial.number}: {report.machine_error}")
        if report.summary is not None:
            done = self._complete(trial, report)
        elif report.error is not None:
            done = search.fail(trial, report.error)
        else:
            search.report(trial, report.curve)
            if not search.should_prune(trial):
                slots.unpause(slot)
                self._running[slot] = running
                return None
            slots.stop(slot)
            done = search.prune(trial)
        slots.release(slot)
        return done

    def _complete(self, trial: Trial, report: Report) -> FrozenTrial:
        """Record the figures of a finished run."""
        search, summary = self.search, report.summary or {}
        search.report(trial, report.curve)
        if "bytes" in search.options.objectives:
            add_bytes(self.folder.trial(trial.number), bytes_sent(summary), summary["rounds"])
        return search.tell(trial, summary)

    def _handle_loss(self, trial: Trial, loss: SlotLost) -> FrozenTrial | None:
        """Queue a trial whose slot was lost; return it if that were too many."""
        number = trial.number
        self._losses[number] += loss.suspicious
        if self._losses[number] >= MAX_LOSSES:
            return self.search.fail(trial, f"lost its slot {MAX_LOSSES} times: {loss.cause}")
        self.listener.note(f"trial {number}: its slot was lost; resuming from its checkpoint")
        self._to_resume.insert(0, trial)
        return None

    def _result(self, busy: float | None) -> StudyResult:
        """Write the settings of the best trials as files for `raysim run`."""
        found, presets = best(self.search), {}
        for trial in found:
            name = (
                "best" if len(self.search.options.objectives) == 1 else f"best-{trial.number:04d}"
            )
            presets[trial.number] = self.folder.path / f"{name}.json"
            settings = self.search.resolved.settings.override(trial.params)
            write_json(presets[trial.number], settings.to_dict())
        return StudyResult(found, presets, busy)
