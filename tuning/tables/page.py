"""Page of a table or a sweep: its values, the tuned settings, and the report of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from raysim.errors import SettingsError
from raysim.results import report
from raysim.results.compare import RunGroup
from raysim.results.origins import revisions_of
from raysim.results.render import Entry, Grid, differences_of, grid_of
from raysim.results.report import charts
from raysim.results.runs import PAGE, result_settings
from raysim.storage.atomic import replace_file
from raysim.tuning.studies.samplers import OBJECTIVES
from raysim.tuning.tables.results import TableResults
from raysim.tuning.tables.tuned import Chosen
from raysim.workloads.datasets.labels import training_labels
from raysim.workloads.papers.run import Run
from raysim.workloads.tables import PaperTable


def write_page(results: TableResults, table: PaperTable, chosen: Sequence[Chosen]) -> Path:
    """Write the page into the folder of a table or a sweep, and return its path.

    Raises:
        SettingsError: a package that it needs is not installed, or no run has begun.
    """
    report.check_extras()
    if not (panels := _panels(results)):
        raise SettingsError("no run has begun")
    tuning = _tuning(chosen) if chosen else None
    drawn = {choice.title: choice.curve for choice in chosen if choice.curve}
    objective = next((choice.objective for choice in chosen if choice.curve), "")
    searches = [charts.searches(drawn, OBJECTIVES[objective])] if drawn else []
    text = report.report(
        panels,
        grid_of(table),
        [table],
        training_labels,
        differences=differences_of(table),
        tuning=tuning,
        searches=searches,
    )
    path = results.folder.path / PAGE
    replace_file(path, lambda aside: aside.write_text(text, encoding="utf-8"))
    return path


def _panels(results: TableResults) -> list[report.Panel]:
    """Return the runs that the table shows, over the seeds that have begun, by its columns.

    Columns of the same runs, as of several metrics, are one panel. References of analyses, which
    are in no cell, are left out.
    """
    records, of_digest = results.records(), dict[str, list[Run]]()
    for run in records:
        of_digest.setdefault(run.digest, []).append(run)
    revisions = revisions_of([*records.values()])
    columns: dict[str, dict[str, str]] = {}
    for cell in results.cells:
        if cell.run.digest in of_digest:
            columns.setdefault(cell.column, {})[cell.row] = cell.run.digest
    titles: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for column, rows in columns.items():
        titles.setdefault((*rows.items(),), []).append(column)

    def group(digest: str, label: str) -> RunGroup:
        runs = of_digest[digest]
        first = records[runs[0]]
        return RunGroup(
            label,
            result_settings(first.settings),
            tuple(records[run] for run in runs),
            revisions[first.path],
        )

    one = len(titles) == 1
    return [
        report.Panel(
            "" if one else ", ".join(names),
            {
                row: group(digest, row if one else f"{row}, {', '.join(names)}")
                for row, digest in rows
            },
        )
        for rows, names in titles.items()
    ]


def _remarks(chosen: Chosen) -> Iterator[str]:
    """Yield the edges that chosen values lie on, ties of trials, and how few samples judge."""
    yield from (f"{key}: {edge}" for key, edge in chosen.edges.items())
    yield from chosen.doubts()


def _tuning(chosen: Sequence[Chosen]) -> Grid:
    """Return the table of the chosen settings, with remarks that cast doubt on them."""
    rows = tuple(
        (
            Entry(choice.title),
            Entry(choice.settings or choice.error or "-"),
            Entry("; ".join(_remarks(choice)) or "-"),
            Entry(f"{choice.objective} {choice.shown_score}".strip(), value=choice.score),
            Entry(str(choice.trials)),
            Entry(str(choice.failed)),
            Entry(str(choice.pruned)),
            Entry(str(choice.rounds)),
        )
        for choice in chosen
    )
    header = (
        "search",
        "chosen",
        "to be doubted",
        "held-out",
        "trials",
        "failed",
        "pruned",
        "rounds",
    )
    return Grid("Settings chosen on held-out samples", header, rows)
