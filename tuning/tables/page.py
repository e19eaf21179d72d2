"""Page of a sweep: its table, what tuning has chosen, and the report of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from raysim.core.errors import RunError
from raysim.results import report
from raysim.results.compare import RunGroup
from raysim.results.origins import revisions_of
from raysim.results.render import Entry, Grid, differences_of, grid_of
from raysim.results.report import charts
from raysim.results.runs import RunRecord, read_run, result_settings
from raysim.results.tables import ResultTable
from raysim.storage.atomic import replace_file
from raysim.tuning.runs.folder import RunsFolder
from raysim.tuning.tables.plan import TablePlan
from raysim.tuning.tables.tuned import Chosen
from raysim.workloads.datasets.labels import training_labels

PAGE = "report.html"


def write_page(
    plan: TablePlan, folder: RunsFolder, results: ResultTable, chosen: Sequence[Chosen]
) -> Path:
    """Write the page into the folder of a sweep, and return its path.

    Raises:
        SettingsError: a package that it needs is not installed; the message names it.
    """
    report.check_extras()
    tuning = _tuning(chosen) if chosen else None
    drawn = {each.title: each.curve for each in chosen if each.curve}
    objective = next((each.objective for each in chosen if each.curve), "")
    title = f"held-out {objective} by trial"
    searches = [charts.searches(drawn, title, least=objective == "loss")] if drawn else []
    text = report.report(
        _groups(plan, folder),
        grid_of(results),
        training_labels,
        differences=differences_of(results),
        tuning=tuning,
        searches=searches,
    )
    path = folder.path / PAGE
    replace_file(path, lambda aside: aside.write_text(text, encoding="utf-8"))
    return path


def _groups(plan: TablePlan, folder: RunsFolder) -> list[RunGroup]:
    """Return the runs of each cell over seeds that have begun, in the order of the table."""
    records: dict[str, list[RunRecord]] = {}
    for run in plan.runs:
        with suppress(RunError):  # it has not begun
            records.setdefault(run.digest, []).append(read_run(folder.path_of(run)))
    revisions = revisions_of([each for group in records.values() for each in group])
    one_column = len({cell.run for cell in plan.chosen}) == len(
        {cell.paper.row for cell in plan.chosen}
    )
    rows = {cell.run.digest: cell.paper.row for cell in plan.chosen}
    return [
        RunGroup(
            rows.get(run.digest, run.label) if one_column else run.label,
            result_settings(records[run.digest][0].settings),
            tuple(records[run.digest]),
            revisions[records[run.digest][0].path],
        )
        for run in plan.first_runs
        if run.digest in records
    ]


def _tuning(chosen: Sequence[Chosen]) -> Grid:
    """Return the table of the chosen settings; those on an edge of their range are marked."""
    rows = tuple(
        (
            Entry(each.title),
            Entry(each.settings or each.error or "-"),
            Entry(f"{each.objective} {each.shown_score}".strip(), value=each.score),
            Entry(str(each.trials)),
            Entry(str(each.failed)),
            Entry(str(each.pruned)),
            Entry(str(each.rounds)),
            Entry("; ".join(f"{key}: {edge}" for key, edge in each.edges.items()) or "-"),
        )
        for each in chosen
    )
    header = ("search", "chosen", "held-out", "trials", "failed", "pruned", "rounds", "on an edge")
    return Grid("Settings chosen on held-out samples", header, rows)
