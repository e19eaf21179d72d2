"""Command `raysim table`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from raysim.core.errors import MachineError, RaysimError
from raysim.results.render import grid_of, to_rich
from raysim.results.tables import ResultTable
from raysim.storage.lock import removed_if_refused
from raysim.tuning.runs.folder import RunsFolder
from raysim.tuning.runs.queue import Runs
from raysim.tuning.runs.run import Run
from raysim.tuning.slots.fitting import count_slots
from raysim.tuning.slots.report import hinting
from raysim.tuning.tables.plan import TableOptions, TablePlan, make_plan
from raysim.tuning.tables.results import FILES, TableResults
from raysim.tuning.tables.work import Workload, time_in_slots
from raysim.workloads.tables import PaperTable

PIPE_WIDTH = 10_000
"""Most characters of a line if stdout is no terminal."""
RESUME = "fix this, then type the same command to resume the table"


def print_table(
    table: PaperTable, options: TableOptions, *, jobs: int | None, out: Path, console: Console
) -> None:
    """Run or resume a table, and print it.

    Args:
        table: The table.
        options: Its cells, rounds, seeds and overrides.
        jobs: Number of slots; None takes as many as fit.
        out: Folder of the runs and of the table's files.
        console: Console for messages.

    Raises:
        RaysimError: an option, a setting, the data, the folder or the cluster does not allow it, or
            a run failed, after the others have ended.
    """
    line = _line_of(console)
    _, runs, written = run_table(table, options, jobs=jobs, out=out, line=line)
    _print_table(console, to_rich(grid_of(written)))
    line(f"{', '.join(FILES)} in {out}")
    runs.raise_failure(RESUME)


def run_table(
    table: PaperTable,
    options: TableOptions,
    *,
    jobs: int | None,
    out: Path,
    line: Callable[[str], None],
) -> tuple[TablePlan, Runs, ResultTable]:
    """Run or resume a table; return plan, runs, of which some may have failed, and values.

    Args:
        table: The table.
        options: Its cells, rounds, seeds and overrides.
        jobs: Number of slots; None takes as many as fit.
        out: Folder of the runs and of the table's files.
        line: Prints a line.

    Raises:
        RaysimError: an option, a setting, the data, the folder or the cluster does not allow it.
    """
    plan, folder = make_plan(table, options), folder_of(table, out)
    plan.check_data()
    chosen = [cell.label for cell in plan.chosen]
    with hinting(RESUME), removed_if_refused(out), folder.lock(plan.labels, chosen):
        results = TableResults(plan, folder)
        runs = queue_of(plan, folder, Workload(), line, results)
        runs.check()
        folder.seal()
        runs.run(jobs)
        return plan, runs, results.write()


def folder_of(table: PaperTable, path: Path) -> RunsFolder:
    """Return the folder of a table's runs."""
    return RunsFolder(path, "table", table.name)


def queue_of(
    plan: TablePlan,
    folder: RunsFolder,
    work: Workload,
    line: Callable[[str], None],
    results: TableResults,
) -> Runs:
    """Return the queue of a table's runs: references first, then those of the most work."""
    for cell in plan.cells:
        if cell.chosen and cell.missing:
            line(f"note: {cell.label}: left out: {cell.missing}")
    references = {run.reference for run in plan.runs}
    return Runs(
        plan.table.name,
        plan.runs,
        folder,
        line,
        order=lambda run: (run not in references, -work.sample_steps(run.settings)),
        text_of=results.text_of,
        changed=results.write,
    )


def dry_run(
    table: PaperTable, options: TableOptions, *, jobs: int | None, out: Path, console: Console
) -> None:
    """Print the cells of a table by run, with the work and an estimated time; run nothing.

    A few rounds of each dataset, model, batch size and method are measured, whose speed is assumed
    for other local epochs and cohorts. A run whose measured rounds fail has no estimate.

    Raises:
        RaysimError: an option, a setting, the data or the folder does not allow the table.
    """
    plan, folder, work = make_plan(table, options), folder_of(table, out), Workload()
    plan.check_data()
    folder.check(plan.labels)
    line = _line_of(console)
    runs = queue_of(plan, folder, work, line, TableResults(plan, folder))
    runs.check()
    slots = count_slots(plan.first_runs[0].settings, jobs)
    firsts = {run.digest: run for run in plan.first_runs}
    left = [firsts[run.digest] for run in runs.waiting]
    estimates = {run: _estimate(work, run) for run in plan.first_runs}
    _print_table(console, _runs(plan, left, work, estimates))
    runs.started(slots)
    for run in dict.fromkeys(left):
        if isinstance(error := estimates[run], str):
            line(f"{run.label}: no estimate: {error}; the one below leaves it out")
    known = [seconds for run in left if isinstance(seconds := estimates[run], float)]
    steps = sum(work.sample_steps(run.settings) for run in left)
    took = duration(time_in_slots(known, slots))
    line(
        f"{steps:.3g} sample-steps; estimate: {took} on {slots} slots, from a few rounds measured"
        " on this machine in one process; less where runs stop at target_accuracy"
    )
    line(
        "one speed is measured for each dataset, model, batch size and method, and taken for all"
        " local epochs and cohorts"
    )
    if analyses := dict.fromkeys(name for run in left for name in run.settings.analysis):
        line(f"the estimate leaves out the analyses of the runs: {', '.join(analyses)}")


def _estimate(work: Workload, run: Run) -> float | str:
    """Return the estimated seconds of a run, or why there is no estimate."""
    try:
        return work.seconds(run.settings)
    except MachineError:
        raise
    except RaysimError as error:
        return str(error).partition(" (traceback in ")[0]  # the folder is deleted


def _runs(
    plan: TablePlan, left: Sequence[Run], work: Workload, estimates: Mapping[Run, float | str]
) -> Table:
    """Return the table of the runs: their cells, rounds, remaining seeds, and work."""
    listed = Table(title=plan.table.name, title_justify="left", box=None)
    for name in ("cells of a run", "rounds", "runs left", "sample-steps", "time of a run"):
        listed.add_column(name, justify="left" if name == "cells of a run" else "right")
    waiting = Counter(left)
    for run in plan.first_runs:
        listed.add_row(
            Text(_cells_of(plan, run)),
            _rounds_of(plan, run),
            f"{waiting[run]} of {plan.seeds}",
            f"{work.sample_steps(run.settings):.3g}",
            "-" if isinstance(seconds := estimates[run], str) else duration(seconds),
        )
    return listed


def _cells_of(plan: TablePlan, run: Run) -> str:
    """Return the chosen cells of a run: each row with its columns."""
    columns: dict[str, list[str]] = {}
    for cell in plan.chosen:
        if cell.run == run:
            columns.setdefault(cell.paper.row, []).append(cell.paper.column)
    rows = [f"{row}, {'; '.join(names)}" for row, names in columns.items()]
    return "; ".join(rows) or f"{run.label} (the reference of others)"


def _rounds_of(plan: TablePlan, run: Run) -> str:
    """Return the rounds of a run, and the most rounds of its cells if these are shortened."""
    rounds, full = run.settings.rounds, max(c.full_rounds for c in plan.cells if c.run == run)
    return str(rounds) if rounds == full else f"{rounds} of {full}"


def duration(seconds: float) -> str:
    """Return a duration in its largest fitting unit."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _line_of(console: Console) -> Callable[[str], None]:
    """Return a function that prints a line without markup."""
    return partial(console.print, highlight=False, markup=False, soft_wrap=True)


def _print_table(console: Console, table: RenderableType) -> None:
    """Print a table, without wrapping in a file or a pipe."""
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
