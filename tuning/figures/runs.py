"""Queue of a figure's runs: a run waits for the one with whose model it is compared."""

from __future__ import annotations

from collections.abc import Callable

from raysim.config import Settings
from raysim.tuning.figures.plan import FigurePlan
from raysim.tuning.slots.queue import ReferencedRuns
from raysim.tuning.slots.report import Report


class FigureRuns(ReferencedRuns[str]):
    """Queue of the runs of a figure that are not finished, by label, in the figure's order.

    Attributes:
        failed: Errors of the runs that failed.
    """

    def __init__(self, plan: FigurePlan, line: Callable[[str], None]) -> None:
        super().__init__()
        self._plan, self._line = plan, line
        self._references = {run.label: run.reference for run in plan.figure.runs}
        self.failed: dict[str, str] = {}
        self.add([label for label in plan.settings if not plan.is_finished(label)])

    def __len__(self) -> int:
        """Return the number of runs that have not ended."""
        return len(self.unended)

    def reference(self, run: str) -> str | None:
        """Return the label of the run with whose model a run is compared."""
        return self._references[run]

    def settings(self, run: str) -> Settings:
        """Return the settings of a run."""
        return self._plan.settings[run]

    def name(self, run: str) -> str:
        """Return a run's label."""
        return run

    def ended(self, run: str, report: Report, seconds: float) -> None:
        """Print the end of a run; the runs that wait for one that failed have failed, too."""
        super().ended(run, report, seconds)
        done = len(self._plan.settings) - len(self)
        outcome = f"{seconds:.1f} s" if report.error is None else f"failed: {report.error}"
        self._line(f"{done}/{len(self._plan.settings)} {run}: {outcome}")
        if report.error is None:
            return
        self.failed[run] = report.error
        for other in [each for each in self.waiting if self.reference(each) == run]:
            self.waiting.remove(other)
            self.ended(other, Report(error=f"its reference {run} failed"), 0.0)

    def note(self, text: str) -> None:
        """Print a note."""
        self._line(f"note: {text}")
