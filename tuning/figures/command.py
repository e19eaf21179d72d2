"""Command `raysim figure`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from raysim.core.errors import RunError
from raysim.results.origins import origin_notes, origins_of
from raysim.results.references import reference_notes
from raysim.results.runs import read_run
from raysim.storage.atomic import replace_file, write_json
from raysim.storage.lock import lock_folder, removed_if_refused
from raysim.storage.rows.parted import read_table
from raysim.storage.schema import GRIDS, SCHEMA, check_claim
from raysim.tuning.figures.plan import FigurePlan, make_plan
from raysim.tuning.figures.runs import FigureRuns
from raysim.tuning.slots.fitting import at_most
from raysim.tuning.slots.pool import open_slots
from raysim.tuning.slots.queue import run_in_slots
from raysim.tuning.slots.report import hinting
from raysim.workloads.papers.drawing import check_packages, draw, rendered
from raysim.workloads.papers.figure import Figure

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
    plan = make_plan(name, overrides, rounds, out, only)
    check_packages()
    plan.check()
    with (
        hinting(RESUME),
        removed_if_refused(out),
        lock_folder(out, "another raysim figure is using this folder"),
    ):
        check_claim(out, "figure", name)
        runs = FigureRuns(plan, line)
        for run, missing in plan.missing.items():
            runs.note(f"{run} cannot be run: {missing}")
        runs.check()
        write_json(out / GRIDS["figure"], {"schema": SCHEMA, "figure": name})
        if runs.remain():
            settings = next(iter(plan.settings.values()))
            wanted = at_most(jobs, len(runs.waiting))
            with open_slots(settings, wanted, runs.note) as slots:
                runs.started(len(slots))
                run_in_slots(slots, runs)
        _draw(plan, runs, out, line)
    runs.raise_failure(RESUME)


def _draw(plan: FigurePlan, runs: FigureRuns, folder: Path, line: Callable[[str], None]) -> None:
    """Draw the runs that have rows.

    Raises:
        RunError: no run has rows.
    """
    figure, notes, failed = plan.figure, plan.notes, {**runs.failed}
    drawn = [run.name for run in figure.runs if run.drawn and run.name in plan.settings]
    tables: dict[str, Mapping[str, Any]] = {}
    for run in (each for each in drawn if each not in failed):
        try:
            tables[run] = columns(plan.directory(run).path, figure)
        except RunError as error:
            failed[run] = str(error)
            runs.note(f"{run}: {error}")
    if not tables:
        raise RunError(f"{plan.name}: all runs failed; {drawn[0]}: {failed[drawn[0]]}; {RESUME}")
    if lacking := [run for run in drawn if run in failed]:
        notes.append(f"Failed and left out: {'; '.join(lacking)}.")
    notes += _run_notes(plan, tables)
    canvas = draw(figure, tables, notes)
    for suffix in FORMATS:
        path, content = folder / f"{plan.name}.{suffix}", rendered(canvas, suffix)
        replace_file(path, partial(Path.write_bytes, data=content))
        line(f"figure: {path}")
    for note in filter(None, (*notes, figure.note)):
        line(note)


def _run_notes(plan: FigurePlan, drawn: Iterable[str]) -> list[str]:
    """Return the lines about runs for readers of their drawing."""
    records = {run: read_run(plan.directory(run).path) for run in drawn}
    notes = [
        line
        for run, record in records.items()
        for line in (*record.notes, *reference_notes(record, plan.settings[run].reference))
    ]
    return notes + origin_notes({run: origins_of(record) for run, record in records.items()})


def columns(run: Path, figure: Figure) -> dict[str, Any]:
    """Return all columns of the run's table that a figure draws, as arrays.

    Raises:
        RunError: the table has no rows, lacks drawn columns, or is damaged.
    """
    name = "metrics" if figure.table == "metrics" else f"analysis/{figure.table}"
    path = run / f"{name}.parquet"
    if not path.exists() or not len(rows := read_table(path)):
        raise RunError(f"{path}: the run has no rows of this analysis; try more rounds or clients")
    if missing := {*figure.values} - {*rows.column_names}:
        raise RunError(f"{path}: the run has no column {min(missing)}")
    return {n: rows[n].to_numpy(zero_copy_only=False) for n in rows.column_names}
