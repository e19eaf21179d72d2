"""Runs of a table, and their queue: references first, then the longest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raysim.config import Settings
from raysim.tuning.slots.queue import ReferencedRuns
from raysim.tuning.slots.report import Report
from raysim.tuning.tables.cells import PlannedRun
from raysim.tuning.tables.folder import TableFolder
from raysim.tuning.tables.plan import TablePlan
from raysim.tuning.tables.work import Workload


@dataclass(frozen=True)
class TableRun:
    """A run of one seed."""

    planned: PlannedRun
    seed: int

    @property
    def label(self) -> str:
        """Row, column and seed."""
        return f"{self.planned.label}, seed {self.seed}"

    @property
    def reference(self) -> TableRun | None:
        """The run with whose model its analyses compare."""
        reference = self.planned.reference
        return TableRun(reference, self.seed) if reference else None


class TableListener:
    """Callbacks of a table; every method does nothing by default."""

    def started(self, slots: int, done: int, runs: int) -> None:
        """Called when the slots are ready, with the number of slots, done and total runs."""

    def run_done(self, run: TableRun, report: Report, seconds: float) -> None:
        """Called when a run is finished or has failed, and is recorded."""

    def note(self, text: str) -> None:
        """Called with a note for the user, in one line."""


class TableRuns(ReferencedRuns[TableRun]):
    """Queue of the runs of a table that are neither finished nor failed.

    Where its reference failed, a run fails for lack of a model.
    """

    def __init__(self, folder: TableFolder, listener: TableListener) -> None:
        super().__init__()
        self._folder, self._listener = folder, listener

    def fill(self, plan: TablePlan, work: Workload) -> int:
        """Add the runs of the chosen cells that have not ended; return the number of all."""
        runs = [TableRun(run, seed) for run in plan.runs for seed in run.seeds(plan.seeds)]
        references = {run.reference for run in runs}
        left = [run for run in runs if not self._has_ended(run)]
        left.sort(key=lambda run: (run not in references, -work.sample_steps(run.planned.settings)))
        self.add(left)
        return len(runs)

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[TableRun]:
        return iter(self.waiting)

    def reference(self, run: TableRun) -> TableRun | None:
        """Return the run of the same seed with whose model a run is compared."""
        return run.reference

    def settings(self, run: TableRun) -> Settings:
        """Return the settings of a run."""
        return self._folder.settings(run.planned, run.seed)

    def name(self, run: TableRun) -> str:
        """Return a run's cell and seed."""
        return run.label

    def ended(self, run: TableRun, report: Report, seconds: float) -> None:
        """Record a run that failed; a finished one has its summary."""
        super().ended(run, report, seconds)
        if report.error is not None:
            path = self._folder.record_failure(run.planned, run.seed, report.error)
            self.note(f"{run.label}: failed; to run it again, delete {path}")
        self._listener.run_done(run, report, seconds)

    def note(self, text: str) -> None:
        """Show the user a line."""
        self._listener.note(text)

    def _has_ended(self, run: TableRun) -> bool:
        folder, place = self._folder, (run.planned, run.seed)
        return folder.failure(*place) is not None or folder.is_finished(*place)
