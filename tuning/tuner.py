"""Tuner: assigns trials to slots and reports every evaluation to Optuna."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import ray
from optuna.trial import FrozenTrial, Trial
from ray.exceptions import RayError, RayTaskError

from raysim.execution.ray_runtime import ray_runtime
from raysim.storage.atomic import write_json
from raysim.tuning.events import add_bytes, describe
from raysim.tuning.folder import StudyFolder
from raysim.tuning.search import Search, best, bytes_sent
from raysim.tuning.slots import Report, Slot, finished, make_slots

MAX_LOSSES = 3
"""Lost slots after which a trial has failed."""


class StudyListener:
    """Callbacks of a study; every method does nothing by default."""

    def started(self, slots: int, done: int, trials: int) -> None:
        """Called when the slots are ready, with the number of slots, done and total trials."""

    def trial_done(self, trial: FrozenTrial, seconds: float) -> None:
        """Called when a trial is completed, pruned or failed."""

    def note(self, text: str) -> None:
        """Called with a note for the user, in one line."""


@dataclass
class _Running:
    """A trial running in a slot."""

    slot: Slot
    trial: Trial
    begun: float = field(default_factory=perf_counter)
    losses: int = 0


class _SlotUsage:
    """Time that slots spent in trials."""

    def __init__(self, slots: int) -> None:
        self._slots, self._begun = slots, perf_counter()
        self._last_start, self._paused_before, self._paused = self._begun, 0.0, 0.0
        self._spans: list[tuple[float, float]] = []

    def trial_started(self) -> None:
        """Record the start of a trial, possibly the last one."""
        self._last_start, self._paused_before = perf_counter(), self._paused

    def trial_paused(self, seconds: float) -> None:
        """Record the pause of a trial that waited for the pruner."""
        self._paused += seconds

    def trial_ended(self, running: _Running) -> float:
        """Record the end of a trial; return its seconds."""
        self._spans.append((running.begun, perf_counter()))
        return self._spans[-1][1] - running.begun

    @property
    def busy(self) -> float | None:
        """Fraction of the slots' time in unpaused trials, until the last trial started."""
        if len(self._spans) <= self._slots:
            return None
        until = self._last_start
        inside = sum(max(0.0, min(ended, until) - begun) for begun, ended in self._spans)
        return (inside - self._paused_before) / ((until - self._begun) * self._slots)


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
        self._running: dict[ray.ObjectRef[Any], _Running] = {}
        self._to_resume: list[Trial] = []

    def run(self, trials: int, jobs: int | None) -> StudyResult:
        """Run trials until the study has the given number.

        Args:
            trials: Total number of trials, including those of earlier calls; at most the points of
                the grid for the grid sampler.
            jobs: Number of slots; None takes as many as fit.

        Raises:
            SettingsError: the slots do not fit on the cluster.
            RunError: the folder is used by another tuner, or belongs to another study.
        """
        settings = self.search.resolved.settings
        if self.search.options.sampler == "grid":
            trials = min(trials, len(self.search.points))
        with (
            self.folder.lock(self.search.study),
            ray_runtime(settings.engine.model_copy(update={"backend": "ray"})),
        ):
            describe(self.folder.path, self.search.resolved.space, self.search.options.objectives)
            self._to_resume = self.search.running_trials()
            slots = make_slots(settings, jobs)
            try:
                ray.get([slot.actor.pid.remote() for slot in slots])
                self.listener.started(len(slots), self._trial_count - len(self._to_resume), trials)
                self._usage = _SlotUsage(len(slots))
                self._run_trials(slots, trials)
            finally:
                for slot in slots:
                    slot.close()
        return self._result()

    def _run_trials(self, slots: list[Slot], trials: int) -> None:
        """Run trials until the study has the given number."""
        free = list(slots)
        while True:
            while free and (trial := self._next(trials)):
                self._start(_Running(free.pop(0), trial))
                self._usage.trial_started()
            if not self._running:
                return
            (call,), _ = ray.wait(list(self._running), num_returns=1)
            running = self._running.pop(call)
            if done := self._handle_report(running, call):
                free.append(running.slot)
                self.listener.trial_done(done, self._usage.trial_ended(running))

    @property
    def _trial_count(self) -> int:
        """Number of trials in the study, in any state."""
        return len(self.search.study.get_trials(deepcopy=False))

    def _next(self, trials: int) -> Trial | None:
        if self._to_resume:
            return self._to_resume.pop(0)
        return self.search.ask() if self._trial_count < trials else None

    def _start(self, running: _Running) -> None:
        """Start a trial in its slot, from its checkpoint if it has one."""
        folder = self.folder.trial(running.trial.number)
        if (folder / "summary.json").exists():  # finished, but an earlier tuner did not record it
            call = ray.put(finished(folder))
        else:
            values = running.trial.params | {"out": str(folder)} | running.slot.engine
            settings = self.search.resolved.settings.override(values)
            call = running.slot.actor.start.remote(settings.to_dict(), self.search.prunes)
        self._running[call] = running

    def _handle_report(self, running: _Running, call: ray.ObjectRef[Any]) -> FrozenTrial | None:
        """Process a slot's report; return the trial if it has ended."""
        try:
            report: Report = ray.get(call)
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:
            return self._handle_lost_slot(running, error)
        self._usage.trial_paused(report.paused_seconds)
        search, trial, slot = self.search, running.trial, running.slot.actor
        search.report(trial, report.curve)
        if report.summary is not None:
            if "bytes" in search.options.objectives:
                summary = report.summary
                add_bytes(self.folder.trial(trial.number), bytes_sent(summary), summary["rounds"])
            return search.tell(trial, report.summary)
        if report.error is not None:
            return search.fail(trial, report.error)
        if search.should_prune(trial):
            slot.stop.remote()
            return search.prune(trial)
        self._running[slot.unpause.remote()] = running
        return None

    def _handle_lost_slot(self, running: _Running, error: RayError) -> FrozenTrial | None:
        """Resume a trial whose slot was lost, up to MAX_LOSSES times; return it if it failed."""
        running.losses += 1
        number = running.trial.number
        running.slot.restart()
        if running.losses >= MAX_LOSSES:
            return self.search.fail(running.trial, f"its slot was lost {MAX_LOSSES} times")
        self.listener.note(f"trial {number}: its slot was lost; resuming from its checkpoint")
        self._start(running)
        return None

    def _result(self) -> StudyResult:
        """Write the settings of the best trials as files for `raysim run`."""
        found, presets = best(self.search), {}
        for trial in found:
            name = (
                "best" if len(self.search.options.objectives) == 1 else f"best-{trial.number:04d}"
            )
            presets[trial.number] = self.folder.path / f"{name}.json"
            settings = self.search.resolved.settings.override(trial.params)
            write_json(presets[trial.number], settings.to_dict())
        return StudyResult(found, presets, self._usage.busy)
