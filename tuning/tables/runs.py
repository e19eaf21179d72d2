"""Runs of a table, and their queue: the longest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raysim.config import Settings
from raysim.tuning.slots.queue import RunQueue
from raysim.tuning.slots.report import Report
from raysim.tuning.tables.folder import TableFolder
from raysim.tuning.tables.plan import PlannedCell, TablePlan
from raysim.tuning.tables.work import Workload


@dataclass(frozen=True)
class TableRun:
    """One seed of a cell."""

    cell: PlannedCell
    seed: int

    @property
    def label(self) -> str:
        """Row, column and seed."""
        return f"{self.cell.label}, seed {self.seed}"


class TableListener:
    """Callbacks of a table; every method does nothing by default."""

    def started(self, slots: int, done: int, runs: int) -> None:
        """Called when the slots are ready, with the number of slots, done and total runs."""

    def run_done(self, run: TableRun, report: Report, seconds: float) -> None:
        """Called when a run is finished or has failed, and is recorded."""

    def note(self, text: str) -> None:
        """Called with a note for the user, in one line."""


class TableRuns(RunQueue[TableRun]):
    """Queue of the runs of a table that are neither finished nor failed."""

    def __init__(self, folder: TableFolder, listener: TableListener) -> None:
        self._folder, self._listener = folder, listener
        self._runs: list[TableRun] = []

    def fill(self, plan: TablePlan, work: Workload) -> int:
        """Add the runs of the chosen cells that have not ended; return the number of all."""
        runs = [TableRun(cell, seed) for cell in plan.chosen for seed in cell.seeds(plan.seeds)]
        self._runs = [run for run in runs if not self._has_ended(run)]
        self._runs.sort(key=lambda run: -work.sample_steps(run.cell.settings))
        return len(runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[TableRun]:
        return iter(self._runs)

    def remain(self) -> bool:
        """Return whether runs remain to be started."""
        return bool(self._runs)

    def next(self) -> TableRun:
        """Return the longest run."""
        return self._runs.pop(0)

    def settings(self, run: TableRun) -> Settings:
        """Return the settings of a run."""
        return self._folder.settings(run.cell, run.seed)

    def name(self, run: TableRun) -> str:
        """Return a run's cell and seed."""
        return run.label

    def ended(self, run: TableRun, report: Report, seconds: float) -> None:
        """Record a run that failed; a finished one has its summary."""
        if report.error is not None:
            path = self._folder.record_failure(run.cell, run.seed, report.error)
            self.note(f"{run.label}: failed; to run it again, delete {path}")
        self._listener.run_done(run, report, seconds)

    def note(self, text: str) -> None:
        """Show the user a line."""
        self._listener.note(text)

    def _has_ended(self, run: TableRun) -> bool:
        folder = self._folder
        return folder.failure(run.cell, run.seed) is not None or folder.is_finished(
            run.cell, run.seed
        )
