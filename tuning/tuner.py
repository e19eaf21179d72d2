"""The tuner: hands trials to slots, hears of every evaluation, and keeps all slots busy."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import ray
from optuna.trial import FrozenTrial, Trial
from ray.exceptions import RayError, RayTaskError

from raysim.core.errors import RunError
from raysim.engine.files import write_json
from raysim.engine.session import ray_session
from tuning.search import Search, best
from tuning.slots import Report, Slot, finished, make_slots

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


@dataclass(frozen=True)
class Outcome:
    """What a study came to.

    Attributes:
        best: The best trial, or the Pareto front.
        presets: Their settings, as files that `raysim run` takes, by trial number.
        busy: Share of the slots' time that was spent in trials while trials remained; None where
            none had to wait.
    """

    best: list[FrozenTrial]
    presets: dict[int, Path]
    busy: float | None


class Tuner:
    """One study in one folder: trials are the runs `trials/0000` and so on."""

    def __init__(self, search: Search, out: Path, watcher: Watcher) -> None:
        self.search, self.out, self.watcher = search, out, watcher
        self._running: dict[ray.ObjectRef[Any], _Running] = {}
        self._left: list[Trial] = []
        self._spans: list[tuple[float, float]] = []

    def run(self, trials: int, jobs: int | None) -> Outcome:
        """Go on until the study has so many trials.

        Args:
            trials: Trials in all, those of earlier calls included; a grid has no more than its
                points.
            jobs: Trials at a time; None takes as many as fit.

        Raises:
            SettingsError: so many trials do not fit on the cluster.
            RunError: another tuner holds the folder.
        """
        settings = self.search.resolved.settings
        if self.search.asked.sampler == "grid":
            trials = min(trials, len(self.search.points))
        with self._claimed(), ray_session(settings.engine.model_copy(update={"backend": "ray"})):
            self._left = self.search.unfinished()
            slots = make_slots(settings, jobs)
            try:
                ray.get([slot.handle.pid.remote() for slot in slots])
                self.watcher.started(len(slots), self._numbered - len(self._left), trials)
                begun = perf_counter()
                exhausted = self._go(slots, trials)
            finally:
                for slot in slots:
                    slot.close()
        if len(self._spans) <= len(slots):
            return self._outcome(None)
        busy = sum(max(0.0, min(ended, exhausted) - start) for start, ended in self._spans)
        return self._outcome(busy / ((exhausted - begun) * len(slots)))

    def _go(self, slots: list[Slot], trials: int) -> float:
        """Run trials; return when the last was handed out."""
        free, exhausted = list(slots), perf_counter()
        while True:
            while free and (trial := self._next(trials)):
                exhausted = perf_counter()
                self._start(_Running(free.pop(0), trial))
            if not self._running:
                return exhausted
            (call,), _ = ray.wait(list(self._running), num_returns=1)
            running = self._running.pop(call)
            if self._ended(running, call):
                free.append(running.slot)
                self._spans.append((running.begun, perf_counter()))
                done = self.search.study.get_trials(deepcopy=False)[running.trial.number]
                self.watcher.trial_done(done, perf_counter() - running.begun)

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
        folder = self.out / "trials" / f"{running.trial.number:04d}"
        if (folder / "summary.json").exists():  # it had finished when the tuner was lost
            call = ray.put(finished(folder))
        else:
            values = running.trial.params | {"out": str(folder)} | running.slot.engine
            settings = self.search.resolved.settings.override(values)
            call = running.slot.handle.start.remote(settings.to_dict())
        self._running[call] = running

    def _ended(self, running: _Running, call: ray.ObjectRef[Any]) -> bool:
        """Hear what a trial has come to; return whether its slot is free again."""
        search, trial = self.search, running.trial
        try:
            report: Report = ray.get(call)
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:
            return self._lost(running, error)
        if report.summary is not None:
            search.tell(trial, report.summary, report.curve)
        elif report.error is not None:
            search.fail(trial, report.error)
        elif search.report(trial, report.step, report.accuracy):
            self._running[running.slot.handle.go_on.remote()] = running
            return False
        else:
            running.slot.handle.stop.remote()
            search.prune(trial)
        return True

    def _lost(self, running: _Running, error: RayError) -> bool:
        """Have a trial whose slot was lost go on from its checkpoint, a few times."""
        running.losses += 1
        number = running.trial.number
        if running.losses >= MAX_LOSSES:
            self.search.fail(running.trial, f"its slot was lost {MAX_LOSSES} times")
            running.slot.renew()
            return True
        self.watcher.note(f"trial {number}: its slot was lost; it goes on from its checkpoint")
        running.slot.renew()
        self._start(running)
        return False

    def _outcome(self, busy: float | None) -> Outcome:
        """Write the best settings as files that `raysim run` takes."""
        found, presets = best(self.search), {}
        for trial in found:
            name = "best" if len(self.search.asked.objectives) == 1 else f"best-{trial.number:04d}"
            presets[trial.number] = self.out / f"{name}.json"
            settings = self.search.resolved.settings.override(trial.params)
            write_json(presets[trial.number], settings.to_dict())
        return Outcome(found, presets, busy)

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Hold the folder for this process; a killed process lets go of it."""
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunError(f"out={self.out}: another tuner is at work there") from error
            yield
