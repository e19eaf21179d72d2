"""Runs of a table, and their queue: references first, then the longest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raysim.config import Settings
from raysim.results.failures import is_divergence
from raysim.tuning.slots.queue import ReferencedRuns
from raysim.tuning.tables.cells import PlannedRun
from raysim.tuning.tables.folder import TableFolder
from raysim.tuning.tables.plan import TablePlan
from raysim.tuning.tables.results import TableResults
from raysim.tuning.tables.work import Workload


@dataclass(frozen=True)
class TableRun:
    """Run of one seed."""

    planned: PlannedRun
    seed: int

    @property
    def reference(self) -> TableRun | None:
        """The run whose model its analyses compare with."""
        reference = self.planned.reference
        return TableRun(reference, self.seed) if reference else None


class TableRuns(ReferencedRuns[TableRun]):
    """Queue of the runs of a table that have neither finished nor diverged; references come first.

    A diverged run would diverge again. Other failed runs are repeated.

    Attributes:
        plan: The table's plan.
        folder: Its folder.
        results: The values of the runs, whose files are updated at the end of each.
    """

    def __init__(
        self, plan: TablePlan, folder: TableFolder, work: Workload, line: Callable[[str], None]
    ) -> None:
        runs = [TableRun(run, seed) for run in plan.runs for seed in run.seeds(plan.seeds)]
        references = {run.reference for run in runs}
        self.plan, self.folder = plan, folder
        left = [run for run in runs if not self._has_ended(run)]
        left.sort(key=lambda run: (run not in references, -work.sample_steps(run.planned.settings)))
        super().__init__(plan.table.name, left, len(runs), line)
        self.results = TableResults(plan, folder)

    def started(self, slots: int) -> None:
        """Print the cells without data, and the number of runs."""
        for cell in self.plan.cells:
            if cell.chosen and cell.missing:
                self.note(f"{cell.label}: left out: {cell.missing}")
        super().started(slots)

    def reference(self, run: TableRun) -> TableRun | None:
        """Return the reference of a run, with the same seed."""
        return run.reference

    def settings(self, run: TableRun) -> Settings:
        """Return the settings of a run."""
        return self.folder.settings(run.planned, run.seed)

    def name(self, run: TableRun) -> str:
        """Return a run's cell and seed."""
        return run.planned.label_of(run.seed)

    def next(self) -> TableRun | None:
        """Return the next run, and delete its failure by an earlier command."""
        run = super().next()
        if run is not None:
            self.folder.clear_failure(run.planned, run.seed)
        return run

    def record(self, run: TableRun, error: str | None) -> None:
        """Record a run that failed by itself, and update the table's files."""
        place = run.planned, run.seed
        if error is not None and self.folder.failure(*place) is None:
            self.folder.record_failure(*place, error)
        self.results.write()

    def text_of(self, run: TableRun) -> str:
        """Return the values of a run's cells."""
        return self.results.text_of(run.planned, run.seed)

    def _has_ended(self, run: TableRun) -> bool:
        folder, place = self.folder, (run.planned, run.seed)
        return is_divergence(folder.failure(*place) or "") or folder.is_finished(*place)
