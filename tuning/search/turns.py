"""Turns of the trials that share a slot, by which a killed study resumes in the same order.

In a turn each trial reports once, in the order of their places, and then new trials take the free
places. So draws and decisions depend on settings and seed alone. The study's storage holds a
trial's place, its first turn, and the number of its reports that the tuner has acted on: if a tuner
was killed inside a turn, trials that have had the turn wait for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, Trial

from raysim.tuning.slots.report import Report

BEGUN, REPORTS = "begun", "reports"
"""Attributes of a trial: place and turn, and number of reports."""


@dataclass(frozen=True)
class TrialRun:
    """One run of a trial.

    Attributes:
        trial: The trial.
        index: Number of the run in its trial, which is added to the seed.
    """

    trial: Trial
    index: int


class Turns:
    """Turns of a tuner's trials, only if trials are stacked.

    Attributes:
        stacked: Whether trials share slots.
        ordered: Whether all trials share one slot; several have no order.
    """

    def __init__(self, stacked: bool) -> None:
        self.stacked = self.ordered = stacked
        self._now = 0
        self._running: dict[TrialRun, int] = {}

    def resumes_at(self, trial: Trial, ended: Sequence[Report]) -> tuple[int, int | None]:
        """Return the number of a run's processed evaluations, and the place of its trial.

        Args:
            trial: The trial.
            ended: The ends of its earlier runs.
        """
        attributes = trial.user_attrs
        reports = attributes.get(REPORTS, 0) - sum(len(report.curve) + 1 for report in ended)
        return max(0, reports), attributes[BEGUN][0] if BEGUN in attributes else None

    def is_undecided(self, trial: Trial) -> bool:
        """Return whether a tuner may have ended before it acted on an evaluation."""
        recorded = trial.study.get_trials(deepcopy=False)[trial.number]
        return not self.stacked or len(recorded.intermediate_values) > recorded.user_attrs.get(
            REPORTS, 0
        )

    def awaits_end(self, trial: Trial, ended: Sequence[Report]) -> bool:
        """Return whether the last end of a trial's finished runs waits for its turn."""
        reports = trial.user_attrs.get(REPORTS, 0)
        return self.stacked and reports < sum(len(report.curve) + 1 for report in ended)

    def resume(self, trials: Iterable[FrozenTrial]) -> None:
        """Continue in the turn that the trials of a study have reached."""
        reached = [_turn(t) + t.state.is_finished() for t in trials if BEGUN in t.user_attrs]
        self._now = max(reached, default=0)

    @property
    def is_over(self) -> bool:
        """True if all trials have had the turn."""
        return not self.ordered or all(turn >= self._now for turn in self._running.values())

    def first(self, waiting: Sequence[TrialRun]) -> TrialRun | None:
        """Return the run that starts first, or None if all wait for a later turn."""
        if not self.ordered:
            return waiting[0]
        run = min(
            waiting, key=lambda each: (self._turn_of(each), BEGUN not in each.trial.user_attrs)
        )
        earliest = min(self._running.values(), default=self._now)
        return run if self._turn_of(run) <= earliest else None

    def started(self, run: TrialRun, place: int) -> None:
        """Note the place of a run that starts."""
        if self.stacked:
            turn = self._running[run] = self._turn_of(run)
            begun = [place, turn - run.trial.user_attrs.get(REPORTS, 0)]
            if run.trial.user_attrs.get(BEGUN) != begun:
                run.trial.set_user_attr(BEGUN, begun)

    def reported(self, run: TrialRun) -> None:
        """Note that a report was acted on."""
        if self.stacked:
            run.trial.set_user_attr(REPORTS, run.trial.user_attrs.get(REPORTS, 0) + 1)
            if run in self._running:
                self._running[run] += 1
                self._now = max(self._now, self._running[run])

    def ended(self, run: TrialRun) -> None:
        """Note the end of a run."""
        if run in self._running:
            self._now = max(self._now, self._running.pop(run) + 1)

    def _turn_of(self, run: TrialRun) -> int:
        """Return the turn that a run waits for.

        With one order no trial is more than a turn behind. A trial further behind or ahead had
        another slot or tuner, or others continued alone meanwhile: it joins the present turn.
        """
        turn = _turn(run.trial) if BEGUN in run.trial.user_attrs else self._now
        return turn if turn in (self._now - 1, self._now) else self._now


def _turn(trial: Trial | FrozenTrial) -> int:
    """Return the turn after the reports of a trial."""
    return int(trial.user_attrs[BEGUN][1] + trial.user_attrs.get(REPORTS, 0))
