"""Tuner: assigns trials to slots and reports every evaluation to Optuna."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from optuna.trial import FrozenTrial, Trial, TrialState

from raysim.config import Settings
from raysim.errors import RunError
from raysim.storage.atomic import write_json
from raysim.storage.run_directory import RunDirectory
from raysim.tuning.artifacts import ARTIFACTS, attach
from raysim.tuning.events import TOTALS, add_total, describe
from raysim.tuning.folder import StudyFolder
from raysim.tuning.search.failures import study_errors
from raysim.tuning.search.results import best, quantity, trial_line
from raysim.tuning.search.search import Search
from raysim.tuning.slots.fitting import at_most
from raysim.tuning.slots.pool import open_slots
from raysim.tuning.slots.queue import RunQueue, run_in_slots
from raysim.tuning.slots.report import Report
from raysim.tuning.slots.slot import finished


class StudyListener:
    """Callbacks of a study; by default each ended trial and each note is a line.

    Attributes:
        line: Shows the user a line.
    """

    def __init__(self, line: Callable[[str], None], title: str = "") -> None:
        """Set how lines are shown.

        Args:
            line: Shows the user a line.
            title: Name of the study, where there are several; each line has it.
        """
        self.line, self._begin = line, f"{title}, " if title else ""

    def started(self, slots: int, done: int, trials: int) -> None:
        """Receive the number of slots, of finished and of all trials when the slots are ready."""

    def trial_done(self, trial: FrozenTrial, seconds: float) -> None:
        """Receive a trial that is completed, pruned or failed."""
        self.line(self._begin + trial_line(trial, seconds))

    def note(self, text: str) -> None:
        """Receive a note for the user, in one line."""
        self.line(f"note: {self._begin}{text}")


@dataclass(frozen=True)
class StudyResult:
    """Result of a study.

    Attributes:
        best: The best trial, or the Pareto front.
        presets: Files of these trials' settings for `raysim run`, by trial number.
        busy: Fraction of the slots' time spent in trials while trials remained, without waiting for
            the tuner; None if no trial had to wait for a slot.
    """

    best: list[FrozenTrial]
    presets: dict[int, Path]
    busy: float | None


@dataclass(frozen=True)
class TrialRun:
    """One run of a trial.

    Attributes:
        trial: The trial.
        index: Number of the run in its trial, which is added to the seed.
    """

    trial: Trial
    index: int


class Tuner(RunQueue[TrialRun]):
    """Runs one study in one folder; trials are the run directories `trials/0000` and so on.

    The runs of a trial of several seeds run one after another, in `trials/0000/seed-0` and so on;
    the pruner judges the first.

    Attributes:
        artifacts: Folder of the artifacts: the model of each trial's first run, among others.
    """

    forced = True

    def __init__(self, search: Search, out: Path, listener: StudyListener) -> None:
        self.search, self.listener = search, listener
        self.folder = StudyFolder(
            out, search.options.seeds, search.tuner if search.is_shared else None
        )
        self.artifacts = (search.folder or out) / ARTIFACTS
        self._waiting: list[TrialRun] = []
        self._finished: defaultdict[int, list[Report]] = defaultdict(list)
        self._seconds: defaultdict[int, float] = defaultdict(float)
        self._trials, self._deadline = 0.0, math.inf
        self.pausing = search.decisions.prunes

    def run(
        self,
        trials: int,
        jobs: int | None,
        timeout: float | None = None,
        retry_failed: bool = False,
    ) -> StudyResult:
        """Run trials until the study has the given number.

        Args:
            trials: Total number of trials, including earlier calls' trials; at most the points of
                the grid for the grid sampler.
            jobs: Number of slots; None takes as many as fit.
            timeout: Seconds after which no trial begins; running trials are completed. None is no
                limit.
            retry_failed: Repeat each failed trial once, as a new trial in addition to `trials`.

        Raises:
            SettingsError: the slots do not fit on the cluster.
            MachineError: database, disk, memory or cluster failed; no trial has ended thereby, and
                the next call resumes the study.
            RunError: the folder is used by another tuner, or belongs to another study.
        """
        with self.begun(trials, retry_failed):
            settings = self.search.resolved.settings
            done, total = self.done, self.total
            if not self.remain():
                self.listener.started(0, done, total)
                self.listener.note("the study is finished; nothing is left to do")
                return self.result(None)
            wanted = at_most(jobs, total - done)
            with open_slots(settings, wanted, self.listener.note) as slots:
                self.listener.started(len(slots), done, total)
                self._deadline = math.inf if timeout is None else monotonic() + timeout
                run_in_slots(slots, self)
                return self.result(slots.busy)

    @contextmanager
    def begun(self, trials: int, retry_failed: bool = False) -> Iterator[None]:
        """Lock the folder and check the study; the body may run its trials.

        Raises:
            MachineError: the database failed.
            RunError: the folder is used by another tuner, or belongs to another study.
        """
        with study_errors(self.search), self.folder.use():
            self._trials = min(trials, self.search.most_trials())
            with self.folder.alone():
                self._start(retry_failed)
            yield

    def _start(self, retry_failed: bool) -> None:
        """Check the present study, and queue the remaining runs of begun trials."""
        search, folder = self.search, self.folder
        search.refresh()
        folder.match(search.study)
        search.claim()
        if left := folder.left(search.study, search.resolved):
            search.take_back(left)
            self.listener.note(
                f"{folder.path}: {len(left)} trials are not in the storage; taken back from runs"
            )
        if retry_failed:
            search.retry_failed()
        self._check_records()
        describe(folder.path, search.resolved.space, search.options.objectives)
        self._take_over()

    def _take_over(self) -> None:
        """Resume the trials of killed tuners."""
        for trial in self.search.take_over(self.folder.at_work()):
            self._resume(trial)

    def _check_records(self) -> None:
        """Compare completed trials with the existing run directories.

        Raises:
            RunError: a trial's parameters or values differ from its run's.
        """
        study, folder = self.search.study, self.folder
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            runs = folder.summaries(trial.number)
            summaries = [trial.user_attrs.get("summary"), runs and self.search.combined(runs)]
            other = None
            with suppress(RunError, LookupError, TypeError):  # an unreadable run
                other = folder.other_parameter(trial)
            for summary in filter(None, summaries):
                with suppress(LookupError, TypeError):
                    other = other or ("values" * (self.search.values(summary) != trial.values))
            if other:
                raise RunError(
                    f"trial {trial.number}: its {other} in {self.search.storage} and in its run"
                    f" {folder.trial(trial.number)} differ; restore the one that is damaged, or"
                    " choose another --out (and --storage, if it is given)"
                )

    def _resume(self, trial: Trial) -> None:
        """Queue the next run of a trial, or record an ended trial."""
        if not self.search.decisions.judge_again(trial):
            self.listener.trial_done(self.search.prune(trial), 0.0)
            return
        for index, folder in enumerate(self.folder.runs(trial.number)):
            if not (folder / "summary.json").exists():
                self._waiting.append(TrialRun(trial, index))
                return
            if differing := self.folder.other_parameter(trial):
                error = f"{folder} holds a run with another {differing}"
                self.listener.trial_done(self.search.fail(trial, error), 0.0)
                return
            report = finished(folder)
            if not self.goes_on(TrialRun(trial, index), report):
                self.listener.trial_done(self.search.prune(trial), 0.0)
                return
            self._finished[trial.number].append(report)
        self.listener.trial_done(self._complete(trial), 0.0)

    @property
    def total(self) -> int:
        """Number of trials at the end of the study."""
        return int(self._trials) + self.search.retries

    @property
    def done(self) -> int:
        """Number of trials that have ended."""
        trials = self.search.study.get_trials(deepcopy=False)
        return sum(trial.state.is_finished() for trial in trials)

    def remain(self) -> bool:
        """Return whether trials remain to be started."""
        if self.search.study.stopped or monotonic() >= self._deadline:
            return bool(self._waiting)
        trials = self.search.study.get_trials(deepcopy=False)
        begun = sum(trial.state is not TrialState.WAITING for trial in trials)
        return bool(self._waiting) or begun < self.total

    def next(self) -> TrialRun | None:
        """Return the next run of a begun trial, or the first run of a new one."""
        if self._waiting:
            return self._waiting.pop(0)
        with self.folder.alone():
            if self.search.is_shared:
                self.search.refresh()
                self._take_over()
            if self._waiting:
                return self._waiting.pop(0)
            return TrialRun(self.search.ask(), 0) if self.remain() else None

    def settings(self, run: TrialRun) -> Settings:
        """Return the settings of a run."""
        settings, number = self.search.resolved.settings, run.trial.number
        values = {"seed": settings.seed + run.index} | run.trial.params
        return settings.override(values | {"out": str(self.folder.runs(number)[run.index])})

    def name(self, run: TrialRun) -> str:
        """Return a trial's name."""
        return f"trial {run.trial.number}"

    def goes_on(self, run: TrialRun, report: Report) -> bool:
        """Report evaluations to Optuna; return whether the pruner lets the trial continue."""
        return run.index > 0 or self.search.decisions.judge(run.trial, report.curve)

    def ended(self, run: TrialRun, report: Report, seconds: float) -> None:
        """Queue the next run of a trial, or record the ended trial."""
        trial, reports = run.trial, self._finished[run.trial.number]
        self._seconds[trial.number] += seconds
        # If a slot was lost, the last evaluations of its run reach the tuner with the run's end.
        if report.summary is not None and self.goes_on(run, report):
            reports.append(report)
            if len(reports) < self.search.options.seeds:
                self._waiting.append(TrialRun(trial, len(reports)))
                return
            done = self._complete(trial)
        elif report.error is not None:
            done = self.search.fail(trial, report.error)
        else:
            done = self.search.prune(trial)
        self.listener.trial_done(done, self._seconds[trial.number])

    def note(self, text: str) -> None:
        """Show the user a line."""
        self.listener.note(text)

    def _complete(self, trial: Trial) -> FrozenTrial:
        """Record the results of a trial after its runs have finished."""
        search, reports = self.search, self._finished.pop(trial.number)
        summaries = [report.summary or {} for report in reports]
        for name in TOTALS.keys() & {*search.options.objectives}:
            for folder, summary in zip(self.folder.runs(trial.number), summaries, strict=True):
                add_total(folder, name, quantity(summary, name), summary["rounds"])
        first, *_ = self.folder.runs(trial.number)
        attach(trial, [RunDirectory(first).model], self.artifacts)
        return search.tell(trial, search.combined(summaries))

    def result(self, busy: float | None) -> StudyResult:
        """Write the settings of the best trials as files for `raysim run`, and return them.

        Args:
            busy: Fraction of the slots' time in trials, if known.
        """
        trials, presets = best(self.search.study), {}
        for trial in trials:
            name = (
                "best" if len(self.search.options.objectives) == 1 else f"best-{trial.number:04d}"
            )
            presets[trial.number] = self.folder.path / f"{name}.json"
            settings = self.search.resolved.settings.override(trial.params)
            write_json(presets[trial.number], settings.to_dict())
        return StudyResult(trials, presets, busy)
