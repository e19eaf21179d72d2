"""Command `raysim table`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from raysim.core.errors import MachineError, RaysimError
from raysim.results.render import grid_of, to_rich
from raysim.results.tables import ResultTable
from raysim.storage.lock import removed_if_refused
from raysim.tuning.slots.fitting import at_most, count_slots
from raysim.tuning.slots.pool import open_slots
from raysim.tuning.slots.queue import run_in_slots
from raysim.tuning.slots.report import hinting
from raysim.tuning.tables.cells import PlannedRun
from raysim.tuning.tables.folder import TableFolder
from raysim.tuning.tables.plan import TableOptions, TablePlan, make_plan
from raysim.tuning.tables.results import FILES
from raysim.tuning.tables.runs import TableRuns
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
    runs, written = run_table(table, options, jobs=jobs, out=out, line=line)
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
) -> tuple[TableRuns, ResultTable]:
    """Run or resume a table; return its runs, of which some may have failed, and its values.

    Args:
        table: The table.
        options: Its cells, rounds, seeds and overrides.
        jobs: Number of slots; None takes as many as fit.
        out: Folder of the runs and of the table's files.
        line: Prints a line.

    Raises:
        RaysimError: an option, a setting, the data, the folder or the cluster does not allow it.
    """
    plan, folder = make_plan(table, options), TableFolder(out)
    plan.check_data()
    with hinting(RESUME), removed_if_refused(out), folder.lock(plan):
        runs = TableRuns(plan, folder, Workload(), line)
        runs.check()
        folder.seal()
        if runs.remain():
            wanted = at_most(jobs, len(runs.waiting))
            with open_slots(plan.runs[0].settings, wanted, runs.note) as slots:
                runs.started(len(slots))
                run_in_slots(slots, runs)
        return runs, runs.results.write()


def dry_run(
    table: PaperTable, options: TableOptions, *, jobs: int | None, out: Path, console: Console
) -> None:
    """Print the cells of a table by run, with the work and an estimated time; run nothing.

    A few rounds of each dataset, model, batch size and method are measured, whose speed is assumed
    for other local epochs and cohorts. A run whose measured rounds fail has no estimate.

    Raises:
        RaysimError: an option, a setting, the data or the folder does not allow the table.
    """
    plan, folder, work = make_plan(table, options), TableFolder(out), Workload()
    plan.check_data()
    folder.check(plan)
    line = _line_of(console)
    runs = TableRuns(plan, folder, work, line)
    runs.check()
    slots = count_slots(plan.runs[0].settings, jobs)
    left = [run.planned for run in runs.waiting]
    estimates = {run: _estimate(work, run) for run in dict.fromkeys([*plan.runs, *left])}
    _print_table(console, _runs(plan, runs, work, estimates))
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


def _estimate(work: Workload, run: PlannedRun) -> float | str:
    """Return the estimated seconds of a run, or why there is no estimate."""
    try:
        return work.seconds(run.settings)
    except MachineError:
        raise
    except RaysimError as error:
        return str(error).partition(" (traceback in ")[0]  # the folder is deleted


def _runs(
    plan: TablePlan, runs: TableRuns, work: Workload, estimates: Mapping[PlannedRun, float | str]
) -> Table:
    """Return the table of the runs: their cells, rounds, remaining seeds, and work."""
    listed = Table(title=plan.table.name, title_justify="left", box=None)
    for name in ("cells of a run", "rounds", "runs left", "sample-steps", "time of a run"):
        listed.add_column(name, justify="left" if name == "cells of a run" else "right")
    left = Counter(run.planned for run in runs.waiting)
    for run in plan.runs:
        listed.add_row(
            Text(_cells_of(plan, run)),
            rounds_of(run),
            f"{left[run]} of {plan.seeds}",
            f"{work.sample_steps(run.settings):.3g}",
            "-" if isinstance(seconds := estimates[run], str) else duration(seconds),
        )
    return listed


def _cells_of(plan: TablePlan, run: PlannedRun) -> str:
    """Return the chosen cells of a run: each row with its columns."""
    columns: dict[str, list[str]] = {}
    for cell in plan.chosen:
        if cell.run is run:
            columns.setdefault(cell.paper.row, []).append(cell.paper.column)
    rows = [f"{row}, {'; '.join(names)}" for row, names in columns.items()]
    return "; ".join(rows) or f"{run.label} (the reference of others)"


def rounds_of(run: PlannedRun) -> str:
    """Return the rounds of a run, and its full rounds if it is shortened."""
    rounds = run.settings.rounds
    return str(rounds) if rounds == run.full_rounds else f"{rounds} of {run.full_rounds}"


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
