"""Command `raysim figure`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from raysim.display.canvas import written
from raysim.errors import RunError
from raysim.results.origins import origin_notes, origins_of
from raysim.results.references import reference_notes
from raysim.results.runs import read_run
from raysim.storage.atomic import replace_file
from raysim.storage.lock import removed_if_refused
from raysim.storage.rows.parted import read_table
from raysim.tuning.figures.plan import FigurePlan, make_plan
from raysim.tuning.runs.folder import RunsFolder
from raysim.tuning.runs.queue import Runs
from raysim.tuning.slots.report import hinting
from raysim.workloads.papers.drawing import check_packages, draw
from raysim.workloads.papers.figure import Figure, FigureRun

FORMATS = ("svg", "png")
RESUME = "fix this, then type the same command to resume the figure"


def figure(
    name: str,
    overrides: Mapping[str, Any],
    *,
    only: Sequence[str],
    rounds: int | None,
    jobs: int | None,
    out: Path,
    line: Callable[[str], None],
) -> None:
    """Run or resume the runs of a figure, and draw it.

    Args:
        name: The figure.
        overrides: Settings of all runs by dotted key.
        only: Words that the names of the runs must have.
        rounds: Rounds of the longest run; None keeps the figure's rounds.
        jobs: Number of slots; None takes as many as fit.
        out: Folder of the runs and of the drawings.
        line: Prints a line.

    Raises:
        RaysimError: an option, a setting, the data, the folder or the cluster does not allow it, or
            a run failed, after the others have been drawn.
    """
    plan, folder = make_plan(name, overrides, rounds, only), RunsFolder(out, "figure", name)
    check_packages()
    plan.check_data()
    with hinting(RESUME), removed_if_refused(out), folder.lock():
        folder.enter(plan.known, plan.runs)
        runs = Runs(name, [*dict.fromkeys(plan.runs.values())], folder, line)
        for run, missing in plan.missing.items():
            runs.note(f"{run} cannot be run: {missing}")
        runs.check()
        folder.seal()
        runs.run(jobs)
        _draw(plan, runs, folder, line)
    runs.raise_failure(RESUME)


def _draw(plan: FigurePlan, runs: Runs, folder: RunsFolder, line: Callable[[str], None]) -> None:
    """Draw the runs that have rows.

    Raises:
        RunError: no run has rows.
    """
    figure, notes = plan.figure, plan.notes
    failed = {label: runs.failed[run] for label, run in plan.runs.items() if run in runs.failed}
    drawn = {run.name: run for run in figure.runs if run.drawn and run.name in plan.runs}
    tables: dict[str, Mapping[str, Any]] = {}
    for label in (name for name in drawn if name not in failed):
        try:
            tables[label] = columns(folder.path_of(plan.runs[label]), figure, drawn[label])
        except RunError as error:
            failed[label] = str(error)
            runs.note(f"{label}: {error}")
    if not tables:
        first = next(iter(drawn))
        raise RunError(f"{plan.name}: all runs failed; {first}: {failed[first]}; {RESUME}")
    if lacking := [label for label in drawn if label in failed]:
        notes.append(f"Failed and left out: {'; '.join(lacking)}.")
    notes += _run_notes(plan, folder, tables)
    canvas = draw(figure, tables, notes)
    for suffix in FORMATS:
        path, content = folder.path / f"{plan.name}.{suffix}", written(canvas, suffix)
        replace_file(path, partial(Path.write_bytes, data=content))
        line(f"figure: {path}")
    for note in filter(None, (*notes, figure.note)):
        line(note)


def _run_notes(plan: FigurePlan, folder: RunsFolder, drawn: Iterable[str]) -> list[str]:
    """Return the lines about runs for readers of their drawing."""
    records = {label: read_run(folder.path_of(plan.runs[label])) for label in drawn}
    notes = []
    for label, record in records.items():
        reference = folder.settings(plan.runs[label]).reference
        notes += [*record.notes, *reference_notes(record, reference)]
    return notes + origin_notes({label: origins_of(record) for label, record in records.items()})


def columns(path_of_run: Path, figure: Figure, run: FigureRun) -> dict[str, Any]:
    """Return all columns of a run's table that a figure draws, as arrays.

    Raises:
        RunError: the table has no rows, lacks drawn columns, or is damaged.
    """
    table = figure.table_of(run)
    path = path_of_run / f"analysis/{table}.parquet"
    if table == "metrics":
        path, rows = path_of_run / "metrics.parquet", read_run(path_of_run).metrics
    else:
        rows = read_table(path) if path.exists() else ()
    if not len(rows):
        raise RunError(f"{path}: the run has no rows of this analysis; try more rounds or clients")
    if missing := {*figure.values} - {*rows.column_names}:
        raise RunError(f"{path}: the run has no column {min(missing)}")
    return {n: rows[n].to_numpy(zero_copy_only=False) for n in rows.column_names}
