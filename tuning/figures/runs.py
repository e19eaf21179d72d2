"""Queue of a figure's runs: a run waits for the one with whose model it is compared."""

from __future__ import annotations

from collections.abc import Callable

from raysim.config import Settings
from raysim.tuning.figures.plan import FigurePlan
from raysim.tuning.slots.queue import RunQueue
from raysim.tuning.slots.report import Report


class FigureRuns(RunQueue[str]):
    """Queue of the runs of a figure that are not finished, by label.

    Attributes:
        failed: Errors of the runs that failed.
    """

    def __init__(self, plan: FigurePlan, line: Callable[[str], None]) -> None:
        self._plan, self._line = plan, line
        self._references = {run.label: run.reference for run in plan.figure.runs}
        self._waiting = [label for label in plan.settings if not plan.is_finished(label)]
        self._unfinished = {*self._waiting}
        self.failed: dict[str, str] = {}

    def __len__(self) -> int:
        """Return the number of runs that have not ended."""
        return len(self._unfinished)

    def _ready(self) -> list[str]:
        """Return the waiting runs without a reference that has not ended."""
        return [run for run in self._waiting if self._references[run] not in self._unfinished]

    def remain(self) -> bool:
        """Return whether runs can be started now."""
        return bool(self._ready())

    def next(self) -> str:
        """Return the first run, in the figure's order, that can be started."""
        run = self._ready()[0]
        self._waiting.remove(run)
        return run

    def settings(self, run: str) -> Settings:
        """Return the settings of a run."""
        return self._plan.settings[run]

    def name(self, run: str) -> str:
        """Return a run's label."""
        return run

    def ended(self, run: str, report: Report, seconds: float) -> None:
        """Print the end of a run; the runs that wait for one that failed have failed, too."""
        self._unfinished.remove(run)
        done = len(self._plan.settings) - len(self)
        outcome = f"{seconds:.1f} s" if report.error is None else f"failed: {report.error}"
        self._line(f"{done}/{len(self._plan.settings)} {run}: {outcome}")
        if report.error is None:
            return
        self.failed[run] = report.error
        for other in [each for each in self._waiting if self._references[each] == run]:
            self._waiting.remove(other)
            self.ended(other, Report(error=f"its reference {run} failed"), 0.0)

    def note(self, text: str) -> None:
        """Print a note."""
        self._line(f"note: {text}")
