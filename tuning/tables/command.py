"""Command `raysim table`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from raysim.results.render import grid_of, to_rich
from raysim.tuning.slots.pool import count_slots, open_slots
from raysim.tuning.slots.queue import run_in_slots
from raysim.tuning.slots.report import Report, hinting
from raysim.tuning.tables.cells import PlannedRun
from raysim.tuning.tables.folder import TableFolder
from raysim.tuning.tables.plan import TableOptions, TablePlan, make_plan
from raysim.tuning.tables.results import FILES, TableResults
from raysim.tuning.tables.runs import TableListener, TableRun, TableRuns
from raysim.tuning.tables.work import Workload, time_in_slots
from raysim.workloads.tables import find

PIPE_WIDTH = 10_000
"""Most characters of a line where stdout is no terminal."""
RESUME = "fix this, then type the same command to resume the table"


def plan_of(name: str, options: TableOptions) -> TablePlan:
    """Return the plan of a table.

    Raises:
        SettingsError: there is no such table, an option is wrong, or no cell is left.
    """
    return make_plan(find(name), options)


def table(
    name: str, options: TableOptions, *, jobs: int | None, out: Path, console: Console
) -> None:
    """Run or resume a table, and print it.

    Args:
        name: The table.
        options: Its cells, rounds, seeds and overrides.
        jobs: Number of slots; None takes as many as fit.
        out: Folder of the runs and of the table's files.
        console: Console for messages.

    Raises:
        RaysimError: an option, a setting, the data, the folder or the cluster does not allow it.
    """
    plan, folder = plan_of(name, options), TableFolder(out)
    plan.check_data()
    with hinting(RESUME), folder.lock(plan):
        results = TableResults(plan, folder)
        output = PlainTableOutput(console, plan, results)
        queue = TableRuns(folder, output)
        runs = queue.fill(plan, Workload())
        if queue.remain():
            with open_slots(plan.runs[0].settings, jobs, output.note) as slots:
                output.started(len(slots), runs - len(queue), runs)
                run_in_slots(slots, queue)
        found = results.write()
    output.table(to_rich(grid_of(found)))
    output.line(f"{', '.join(FILES)} in {out}")


def dry_run(
    name: str, options: TableOptions, *, jobs: int | None, out: Path, console: Console
) -> None:
    """Print the runs of a table with their work and an estimate of the time; run nothing.

    A few rounds of each dataset, model, batch size and method are measured.

    Raises:
        RaysimError: an option, a setting, the data or the folder does not allow the table.
    """
    plan, folder, work = plan_of(name, options), TableFolder(out), Workload()
    plan.check_data()
    output = PlainTableOutput(console, plan, TableResults(plan, folder))
    queue = TableRuns(folder, output)
    runs = queue.fill(plan, work)
    slots = count_slots(plan.runs[0].settings, jobs)
    seconds = [work.seconds(run.planned.settings) for run in queue]
    output.table(_runs(plan, queue, work))
    output.started(slots, runs - len(queue), runs)
    steps = sum(work.sample_steps(run.planned.settings) for run in queue)
    took = duration(time_in_slots(seconds, slots))
    output.line(
        f"{steps:.3g} sample-steps; estimate: {took} on {slots} slots, from a few rounds measured"
        " on this machine in one process; less where runs stop at target_accuracy"
    )


def _runs(plan: TablePlan, queue: TableRuns, work: Workload) -> Table:
    """Return the table of the runs: cells read off them, rounds, seeds that are left, and work."""
    found = Table(title=plan.table.name, title_justify="left", box=None)
    for name in ("run", "cells", "rounds", "runs left", "sample-steps", "time of a run"):
        found.add_column(name, justify="left" if name == "run" else "right")
    cells, left = Counter(cell.run for cell in plan.chosen), Counter(run.planned for run in queue)
    for run in plan.runs:
        found.add_row(
            Text(run.label),
            str(cells[run]),
            rounds_of(run),
            f"{left[run]} of {plan.seeds}",
            f"{work.sample_steps(run.settings):.3g}",
            duration(work.seconds(run.settings)),
        )
    return found


def rounds_of(run: PlannedRun) -> str:
    """Return the rounds of a run, and of how many."""
    rounds = run.settings.rounds
    return str(rounds) if rounds == run.full_rounds else f"{rounds} of {run.full_rounds}"


def duration(seconds: float) -> str:
    """Return a duration in its largest fitting unit."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


class PlainTableOutput(TableListener):
    """Plain output of a table: a line for each run; the table's files are updated with each."""

    def __init__(self, console: Console, plan: TablePlan, results: TableResults) -> None:
        self._console, self._plan, self._results = console, plan, results
        self._done = self._runs = 0

    def line(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def table(self, table: RenderableType) -> None:
        """Print a table, in a file or a pipe without breaking its lines."""
        if not self._console.is_terminal:
            self._console.width = PIPE_WIDTH
        self._console.print(table)

    def started(self, slots: int, done: int, runs: int) -> None:
        """Print the cells without data, and the number of runs."""
        self._done, self._runs = done, runs
        for cell in self._plan.cells:
            if cell.chosen and cell.missing:
                self.note(f"{cell.label}: left out: {cell.missing}")
        self.line(f"{self._plan.table.name}: {runs} runs, {done} done; {slots} slots")

    def run_done(self, run: TableRun, report: Report, seconds: float) -> None:
        """Update the table's files, and print a run's values."""
        self._results.write()
        self._done += 1
        outcome = f"failed: {report.error}" if report.error else self._results.text_of(run)
        self.line(f"{self._done}/{self._runs} {run.label}: {outcome}  {seconds:.1f} s")

    def note(self, text: str) -> None:
        """Print a note."""
        self.line(f"note: {text}")
