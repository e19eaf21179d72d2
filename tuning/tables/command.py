"""Command `raysim table`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from raysim.display.terminal import print_line
from raysim.display.units import in_fitting_unit
from raysim.errors import MachineError, RaysimError, RunError, SettingsError, visible
from raysim.results.failures import is_divergence
from raysim.storage.lock import removed_if_refused
from raysim.tuning.runs.folder import RunsFolder
from raysim.tuning.runs.queue import Runs
from raysim.tuning.slots.fitting import count_slots
from raysim.tuning.slots.report import hinting
from raysim.tuning.tables.page import write_page
from raysim.tuning.tables.plan import Planner
from raysim.tuning.tables.results import FILES, TableResults
from raysim.tuning.tables.searches import budget, read_tune, to_search
from raysim.tuning.tables.tuned import Chosen, tuned
from raysim.tuning.tables.work import RunCost, time_in_slots
from raysim.workloads.papers.run import Run
from raysim.workloads.tables import PaperTable

PIPE_WIDTH = 10_000
"""Most characters of a line if stdout is no terminal."""


def next_step(table: PaperTable) -> str:
    """Return the next step for the user after an error."""
    kind = "table" if table.paper else "sweep"
    return f"fix this, then type the same command to resume the {kind}"


def run_table(
    table: PaperTable,
    planner: Planner,
    *,
    jobs: int | None,
    out: Path,
    line: Callable[[str], None],
    show: Callable[[PaperTable], object],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TableResults:
    """Run or resume a table, tuned first if it asks for that; write its files and its page.

    Args:
        table: The table.
        planner: Plans it: its cells, rounds, seeds and overrides.
        jobs: Number of slots; None takes as many as fit.
        out: Folder of the runs and of the table's files.
        line: Prints a line.
        show: Called with the table once its runs have ended.
        progress: Called with the numbers of ended and of all runs.

    Raises:
        RaysimError: an option, a setting, the data, the folder or the cluster does not allow it, or
            a run or a search failed, other than by divergence, after the others have ended.
    """
    resume = next_step(table)
    results, cost = TableResults(planner(table), folder_of(table, out)), RunCost()
    plan, folder = results.plan, results.folder
    plan.check_data()
    tune = read_tune(table.tune) if table.tune else None
    chosen: list[Chosen] = []
    with hinting(resume), removed_if_refused(out), folder.lock():
        if tune:
            searched = to_search(plan, tune)
            queue_of(results, cost, line).check()
            table, chosen = tuned(table, tune, searched, out=out, jobs=jobs, line=line)
            results = TableResults(planner(table), folder)
            plan = results.plan
        folder.enter(plan.labels, [cell.label for cell in plan.chosen], results.searched)
        runs = queue_of(results, cost, line, progress=progress)
        runs.check()
        folder.seal()
        runs.run(jobs)
        written = results.write()
    show(written)
    line(f"{', '.join(FILES)} in {folder.path}")
    try:
        line(f"report: {write_page(results, written, chosen)}")
    except SettingsError as lacking:
        line(f"note: no page: {lacking}")
    runs.raise_failure(resume)
    for search in chosen:
        if search.error and not is_divergence(search.error):
            raise RunError(f"{search.title}: all its trials failed; {search.error}; {resume}")
    return results


def folder_of(table: PaperTable, path: Path) -> RunsFolder:
    """Return the folder of a table's runs."""
    return RunsFolder(path, "table", table.name)


def queue_of(
    results: TableResults,
    cost: RunCost,
    line: Callable[[str], None],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Runs:
    """Return the queue of a table's runs: references first, then the longest."""
    plan = results.plan
    for cell in plan.cells:
        if cell.chosen and cell.missing:
            line(f"note: {cell.label}: left out: {cell.missing}")
    references = {run.reference for run in plan.runs}
    return Runs(
        plan.name,
        plan.runs,
        results.folder,
        line,
        order=lambda run: (run not in references, -cost.sample_steps(run.settings)),
        text_of=results.text_of,
        changed=results.write,
        progress=progress,
    )


def dry_run(
    table: PaperTable, planner: Planner, *, jobs: int | None, out: Path, console: Console
) -> None:
    """Print the cells of a table by run, with the work and an estimated time; run nothing.

    This measures a few rounds of each dataset, model, batch size and method, and assumes their
    speed for other local epochs and cohorts. If the measured rounds fail, a run has no estimate.

    Raises:
        RaysimError: an option, a setting, the data or the folder does not allow the table.
    """
    results, cost = TableResults(planner(table), folder_of(table, out)), RunCost()
    plan = results.plan
    plan.check_data()
    tune = read_tune(table.tune) if table.tune else None
    results.folder.check(plan.labels, results.searched)
    line = partial(print_line, console)
    if tune:
        line(f"{budget(tune, to_search(plan, tune))}; the estimate leaves the trials out")
    runs = queue_of(results, cost, line)
    runs.check()
    slots = count_slots(plan.first_runs[0].settings, jobs)
    firsts = {run.digest: run for run in plan.first_runs}
    left = [firsts[run.digest] for run in runs.waiting]
    estimates = {run: _estimate(cost, run) for run in plan.first_runs}
    print_table(console, _runs(plan, left, cost, estimates))
    runs.started(slots)
    for run in dict.fromkeys(left):
        if isinstance(error := estimates[run], str):
            line(f"{run.label}: no estimate: {error}; the one below leaves it out")
    known = [seconds for run in left if isinstance(seconds := estimates[run], float)]
    steps = sum(cost.sample_steps(run.settings) for run in left)
    took = in_fitting_unit(time_in_slots(known, slots), "s")
    line(
        f"{steps:.3g} sample-steps; estimate: {took} on {slots} slots, from a few rounds measured"
        " on this machine in one process; less where runs stop at target_accuracy or by"
        " patience"
    )
    line(
        "one speed is measured for each dataset, model, batch size and method, and taken for all"
        " local epochs and cohorts"
    )
    if analyses := dict.fromkeys(name for run in left for name in run.settings.analysis):
        line(f"the estimate leaves out the analyses of the runs: {', '.join(analyses)}")


def _estimate(cost: RunCost, run: Run) -> float | str:
    """Return the estimated seconds of a run, or why there is no estimate."""
    try:
        return cost.seconds(run.settings)
    except MachineError:
        raise
    except RaysimError as error:
        return str(error).partition(" (traceback in ")[0]  # the folder is deleted


def _runs(
    plan: PaperTable, left: Sequence[Run], cost: RunCost, estimates: Mapping[Run, float | str]
) -> Table:
    """Return the table of the runs: their cells, rounds, remaining seeds, and work."""
    listed = Table(title=plan.name, title_justify="left", box=None)
    for name in ("cells of a run", "rounds", "runs left", "sample-steps", "time of a run"):
        listed.add_column(name, justify="left" if name == "cells of a run" else "right")
    waiting = Counter(left)
    for run in plan.first_runs:
        rounds, full = run.settings.rounds, max(c.full_rounds for c in plan.cells if c.run == run)
        listed.add_row(
            Text(visible(_cells_of(plan, run))),
            str(rounds) if rounds == full else f"{rounds} of {full}",
            f"{waiting[run]} of {len(plan.seeds)}",
            f"{cost.sample_steps(run.settings):.3g}",
            "-" if isinstance(seconds := estimates[run], str) else in_fitting_unit(seconds, "s"),
        )
    return listed


def _cells_of(plan: PaperTable, run: Run) -> str:
    """Return the chosen cells of a run: each row, with its columns if other runs have some."""
    columns: dict[str, list[str]] = {}
    for cell in plan.chosen:
        if cell.run == run:
            columns.setdefault(cell.row, []).append(cell.column)
    all_columns = Counter(cell.row for cell in plan.chosen)
    rows = [
        row if len(names) == all_columns[row] > 1 else f"{row}, {'; '.join(names)}"
        for row, names in columns.items()
    ]
    return "; ".join(rows) or f"{run.label} (the reference of others)"


def print_table(console: Console, table: RenderableType) -> None:
    """Print a table, without wrapping in a file or a pipe."""
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
