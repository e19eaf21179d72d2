"""Turns of the trials that share a slot, by which a killed study goes on in the same order.

In a turn each trial reports once, in the order of their places, and then new trials take the places
that are free. So draws and decisions depend on settings and seed alone. A trial's place and the
turn in which it began are in the study's storage, and so is the number of its reports that the
tuner has acted on: where a tuner was killed inside a turn, trials that have had it wait for those
that have not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import Trial

from raysim.tuning.slots.report import Report

BEGUN, REPORTS = "begun", "reports"
"""Attributes of a trial: place and turn, and number of reports."""


@dataclass(frozen=True)
class TrialRun:
    """One run of a trial.

    Attributes:
        trial: The trial.
        index: Number of the run among those of its trial; its seed is that much above the first.
    """

    trial: Trial
    index: int


class Turns:
    """Turns of the trials of a tuner; without stacks there are none.

    Attributes:
        stacked: Whether trials share slots.
        ordered: Whether they share one slot, which alone has an order.
    """

    def __init__(self, stacked: bool) -> None:
        self.stacked = self.ordered = stacked
        self._now = 0
        self._running: dict[TrialRun, int] = {}

    def resumes_at(self, trial: Trial, ended: Sequence[Report]) -> tuple[int, int | None]:
        """Return the evaluations of a trial's run that were acted on, and the trial's place.

        Args:
            trial: The trial.
            ended: The ends of its runs before.
        """
        found = trial.user_attrs
        reports = found.get(REPORTS, 0) - sum(len(report.curve) + 1 for report in ended)
        return max(0, reports), found[BEGUN][0] if BEGUN in found else None

    def is_undecided(self, trial: Trial) -> bool:
        """Return whether a tuner may have ended before it acted on an evaluation."""
        values = trial.study._storage.get_trial(trial._trial_id).intermediate_values
        return not self.stacked or len(values) > trial.user_attrs.get(REPORTS, 0)

    def awaits_end(self, trial: Trial, ended: Sequence[Report]) -> bool:
        """Return whether the last end of a trial's finished runs has not had its turn."""
        reports = trial.user_attrs.get(REPORTS, 0)
        return self.stacked and reports < sum(len(report.curve) + 1 for report in ended)

    @property
    def is_over(self) -> bool:
        """True if all trials have had the turn."""
        return not self.ordered or len({*self._running.values()}) <= 1

    def first(self, waiting: Sequence[TrialRun]) -> TrialRun | None:
        """Return the run that starts first, or None where all wait for a later turn."""
        known = [run for run in waiting if BEGUN in run.trial.user_attrs]
        if not self.ordered or not known:
            return waiting[0]
        run = min(known, key=_turn_of)
        if not self._running:
            self._now = _turn_of(run)
        return run if _turn_of(run) <= self._now else None

    def started(self, run: TrialRun, place: int) -> None:
        """Note the place of a run that starts."""
        if self.stacked:
            self._running.setdefault(run, self._now)
            if BEGUN not in run.trial.user_attrs:
                run.trial.set_user_attr(BEGUN, [place, self._now])

    def reported(self, run: TrialRun) -> None:
        """Note that a report was acted on."""
        if self.stacked:
            run.trial.set_user_attr(REPORTS, run.trial.user_attrs.get(REPORTS, 0) + 1)
            if run in self._running:
                self._now = self._running[run] = self._running[run] + 1

    def ended(self, run: TrialRun) -> None:
        """Note the end of a run."""
        if run in self._running:
            self._now = max(self._now, self._running.pop(run) + 1)


def _turn_of(run: TrialRun) -> int:
    """Return the turn that a run waits for."""
    found = run.trial.user_attrs
    return int(found[BEGUN][1] + found.get(REPORTS, 0))
