"""The tuner: hands trials to slots, hears of every evaluation, and keeps all slots busy."""

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
"""Losses of a trial's slot after which the trial has failed."""


class Watcher:
    """Hears how a study goes; every answer defaults to doing nothing."""

    def started(self, slots: int, done: int, trials: int) -> None:
        """So many slots are there; so many trials are done already."""

    def trial_done(self, trial: FrozenTrial, seconds: float) -> None:
        """A trial was completed, pruned or failed."""

    def note(self, text: str) -> None:
        """Something that a user should know, in one line."""


@dataclass
class _Running:
    """A trial in a slot."""

    slot: Slot
    trial: Trial
    begun: float = field(default_factory=perf_counter)
    losses: int = 0


class _Times:
    """When slots were at work."""

    def __init__(self, slots: int) -> None:
        self._slots, self._begun = slots, perf_counter()
        self._exhausted, self._held_before, self._held = self._begun, 0.0, 0.0
        self._spans: list[tuple[float, float]] = []

    def handed_out(self) -> None:
        """A trial was handed to a slot; it may be the last."""
        self._exhausted, self._held_before = perf_counter(), self._held

    def held(self, seconds: float) -> None:
        """A trial was held up for so long, to be told whether to go on."""
        self._held += seconds

    def ended(self, running: _Running) -> float:
        """A trial has ended; return its seconds."""
        self._spans.append((running.begun, perf_counter()))
        return self._spans[-1][1] - running.begun

    @property
    def busy(self) -> float | None:
        """Share of the slots' time in trials, not held up, until the last was handed out."""
        if len(self._spans) <= self._slots:
            return None
        until = self._exhausted
        inside = sum(max(0.0, min(ended, until) - begun) for begun, ended in self._spans)
        return (inside - self._held_before) / ((until - self._begun) * self._slots)


@dataclass(frozen=True)
class Outcome:
    """What a study came to.

    Attributes:
        best: The best trial, or the Pareto front.
        presets: Their settings, as files that `raysim run` takes, by trial number.
        busy: Share of the slots' time that was spent at work in trials while trials remained, and
            not in waiting for the tuner; None where no trial had to wait for a slot.
    """

    best: list[FrozenTrial]
    presets: dict[int, Path]
    busy: float | None


class Tuner:
    """One study in one folder: trials are the runs `trials/0000` and so on."""

    def __init__(self, search: Search, out: Path, watcher: Watcher) -> None:
        self.search, self.folder, self.watcher = search, StudyFolder(out), watcher
        self._running: dict[ray.ObjectRef[Any], _Running] = {}
        self._left: list[Trial] = []

    def run(self, trials: int, jobs: int | None) -> Outcome:
        """Go on until the study has so many trials.

        Args:
            trials: Trials in all, those of earlier calls included; a grid has no more than its
                points.
            jobs: Trials at a time; None takes as many as fit.

        Raises:
            SettingsError: so many trials do not fit on the cluster.
            RunError: the folder is another tuner's, or another study's.
        """
        settings = self.search.resolved.settings
        if self.search.asked.sampler == "grid":
            trials = min(trials, len(self.search.points))
        with (
            self.folder.lock(self.search.study),
            ray_runtime(settings.engine.model_copy(update={"backend": "ray"})),
        ):
            describe(self.folder.path, self.search.resolved.space, self.search.asked.objectives)
            self._left = self.search.unfinished()
            slots = make_slots(settings, jobs)
            try:
                ray.get([slot.handle.pid.remote() for slot in slots])
                self.watcher.started(len(slots), self._numbered - len(self._left), trials)
                self._times = _Times(len(slots))
                self._go(slots, trials)
            finally:
                for slot in slots:
                    slot.close()
        return self._outcome()

    def _go(self, slots: list[Slot], trials: int) -> None:
        """Run trials until there are so many."""
        free = list(slots)
        while True:
            while free and (trial := self._next(trials)):
                self._start(_Running(free.pop(0), trial))
                self._times.handed_out()
            if not self._running:
                return
            (call,), _ = ray.wait(list(self._running), num_returns=1)
            running = self._running.pop(call)
            if done := self._heard(running, call):
                free.append(running.slot)
                self.watcher.trial_done(done, self._times.ended(running))

    @property
    def _numbered(self) -> int:
        """Trials that have a number."""
        return len(self.search.study.get_trials(deepcopy=False))

    def _next(self, trials: int) -> Trial | None:
        if self._left:
            return self._left.pop(0)
        return self.search.next() if self._numbered < trials else None

    def _start(self, running: _Running) -> None:
        """Hand a trial to its slot, from the start or from its checkpoint."""
        folder = self.folder.trial(running.trial.number)
        if (folder / "summary.json").exists():  # it had finished when the tuner was lost
            call = ray.put(finished(folder))
        else:
            values = running.trial.params | {"out": str(folder)} | running.slot.engine
            settings = self.search.resolved.settings.override(values)
            call = running.slot.handle.start.remote(settings.to_dict(), self.search.judges)
        self._running[call] = running

    def _heard(self, running: _Running, call: ray.ObjectRef[Any]) -> FrozenTrial | None:
        """Hear what a trial has come to; return it if it has ended, and its slot is free."""
        try:
            report: Report = ray.get(call)
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:
            return self._lost(running, error)
        self._times.held(report.held)
        search, trial, slot = self.search, running.trial, running.slot.handle
        search.report(trial, report.curve)
        if report.summary is not None:
            if "bytes" in search.asked.objectives:
                summary = report.summary
                add_bytes(self.folder.trial(trial.number), bytes_sent(summary), summary["rounds"])
            return search.tell(trial, report.summary)
        if report.error is not None:
            return search.fail(trial, report.error)
        if search.gives_up(trial):
            slot.stop.remote()
            return search.prune(trial)
        self._running[slot.go_on.remote()] = running
        return None

    def _lost(self, running: _Running, error: RayError) -> FrozenTrial | None:
        """Have a trial whose slot was lost go on from its checkpoint, a few times."""
        running.losses += 1
        number = running.trial.number
        running.slot.renew()
        if running.losses >= MAX_LOSSES:
            return self.search.fail(running.trial, f"its slot was lost {MAX_LOSSES} times")
        self.watcher.note(f"trial {number}: its slot was lost; it goes on from its checkpoint")
        self._start(running)
        return None

    def _outcome(self) -> Outcome:
        """Write the best settings as files that `raysim run` takes."""
        found, presets = best(self.search), {}
        for trial in found:
            name = "best" if len(self.search.asked.objectives) == 1 else f"best-{trial.number:04d}"
            presets[trial.number] = self.folder.path / f"{name}.json"
            settings = self.search.resolved.settings.override(trial.params)
            write_json(presets[trial.number], settings.to_dict())
        return Outcome(found, presets, self._times.busy)
