"""Command `raysim figure`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from raysim.core.errors import RunError
from raysim.storage.atomic import replace_file
from raysim.storage.lock import lock_folder
from raysim.tuning.figures.plan import FigurePlan, make_plan
from raysim.tuning.figures.runs import FigureRuns
from raysim.tuning.slots.pool import open_slots
from raysim.tuning.slots.queue import run_in_slots
from raysim.tuning.slots.report import hinting
from raysim.workloads.figures.drawing import check_packages, draw, rendered

FORMATS = ("svg", "png")
RESUME = "fix this, then type the same command to resume the figure"


def figure(
    name: str,
    overrides: Mapping[str, Any],
    *,
    rounds: int | None,
    jobs: int | None,
    out: Path,
    line: Callable[[str], None],
) -> None:
    """Run or resume the runs of a figure, and draw it.

    Args:
        name: The figure.
        overrides: Settings of all runs by dotted key.
        rounds: Rounds of the longest run; None leaves those of the figure.
        jobs: Number of slots; None takes as many as fit.
        out: Folder of the runs and of the drawings.
        line: Prints a line.

    Raises:
        RaysimError: an option, a setting, the data, the folder or the cluster does not allow it.
    """
    plan = make_plan(name, overrides, rounds, out)
    check_packages()
    plan.check()
    with hinting(RESUME), lock_folder(out, "another raysim figure is using this folder"):
        runs = FigureRuns(plan, line)
        if runs:
            settings = next(iter(plan.settings.values()))
            with open_slots(settings, jobs, runs.note) as slots:
                total = len(plan.settings)
                line(f"{name}: {total} runs, {total - len(runs)} done; {len(slots)} slots")
                run_in_slots(slots, runs)
        _draw(plan, runs.failed, out, line)


def _draw(
    plan: FigurePlan, failed: Mapping[str, str], folder: Path, line: Callable[[str], None]
) -> None:
    """Draw the runs that have not failed.

    Raises:
        RunError: all have, or one has no rows.
    """
    figure = plan.figure
    drawn = [run.label for run in figure.runs if run.drawn]
    if failed.keys() >= {*drawn}:
        raise RunError(f"{plan.name}: all runs failed; {drawn[0]}: {failed[drawn[0]]}")
    tables = {
        label: columns(plan.directory(label).path, figure.table)
        for label in drawn
        if label not in failed
    }
    notes = plan.notes
    if lacking := [label for label in drawn if label in failed]:
        notes.append(f"failed and left out: {'; '.join(lacking)}")
    canvas = draw(figure, tables, notes)
    for suffix in FORMATS:
        path, content = folder / f"{plan.name}.{suffix}", rendered(canvas, suffix)
        replace_file(path, partial(Path.write_bytes, data=content))
        line(f"figure: {path}")
    for note in filter(None, (*notes, figure.note)):
        line(note)


def columns(run: Path, table: str) -> dict[str, Any]:
    """Return the columns of a run's table as arrays.

    Raises:
        RunError: it has no rows.
    """
    path = run / ("metrics.parquet" if table == "metrics" else f"analysis/{table}.parquet")
    if not path.exists():
        raise RunError(f"{path}: the run has no rows of this analysis; try more rounds or clients")
    found = pq.read_table(path)
    return {n: found[n].to_numpy(zero_copy_only=False) for n in found.column_names}
