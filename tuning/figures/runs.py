"""Queue of a figure's runs."""

from __future__ import annotations

from collections.abc import Callable

from raysim.config import Settings
from raysim.results.runs import infinite_loss
from raysim.tuning.figures.plan import FigurePlan
from raysim.tuning.slots.queue import ReferencedRuns


class FigureRuns(ReferencedRuns[str]):
    """Queue of the runs of a figure that are not finished, by name, in the figure's order."""

    def __init__(self, plan: FigurePlan, line: Callable[[str], None]) -> None:
        left = [run for run in plan.settings if not plan.is_finished(run)]
        super().__init__(plan.name, left, len(plan.settings), line)
        for run in {*plan.settings} - {*left}:
            if error := infinite_loss(plan.directory(run).path):
                self.failed[run] = error
        self._plan = plan
        self._references = {run.name: run.reference for run in plan.figure.runs}

    def reference(self, run: str) -> str | None:
        """Return the name of a run's reference."""
        return self._references[run]

    def settings(self, run: str) -> Settings:
        """Return the settings of a run."""
        return self._plan.settings[run]

    def name(self, run: str) -> str:
        """Return a run's name."""
        return run

    def record(self, run: str, error: str | None) -> None:
        """Record nothing: a run that failed is left out of the drawing and run again."""

    def text_of(self, run: str) -> str:
        """Return the word for a finished run, whose values the drawing shows."""
        return "finished"
