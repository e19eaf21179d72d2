"""Commands `raysim compare` and `raysim report`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from raysim.cli.options import Json, path_option
from raysim.cli.output import to_json
from raysim.display.terminal import print_line
from raysim.errors import SettingsError

if TYPE_CHECKING:
    from raysim.results.compare import RunGroup
    from raysim.results.metrics import Metric

console = Console(emoji=False)

Runs = Annotated[
    list[Path],
    typer.Argument(
        parser=path_option("RUN"),
        metavar="RUN...",
        help="run directories, folders of them, or archives of raysim pack",
    ),
]
Target = Annotated[
    float | None,
    typer.Option(help="accuracy of the column of rounds; default: target_accuracy of the runs"),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", help="a further column, as 'rounds_to(test_loss, 0.5)'"),
]


def compare(
    runs: Runs, target: Target = None, metric: Metrics = None, *, json: Json = False
) -> None:
    """Compare runs: a row per group of equal settings, mean and deviation over seeds."""
    from raysim.results.compare import comparison, comparison_document
    from raysim.results.packed import opened
    from raysim.results.render import to_rich

    with opened(runs) as (paths, shown):
        groups, columns = _compared(paths, target, metric)
        if json:
            typer.echo(shown(to_json(comparison_document(groups, columns))))
            return
        grid = comparison(groups, columns)
        console.print(to_rich(replace(grid, notes=tuple(map(shown, grid.notes)))))


def report(
    runs: Runs,
    out: Annotated[
        Path,
        typer.Option(
            *("--out", "-o"),
            parser=path_option("--out"),
            metavar="PATH",
            help="the page (.html), or the runs' citation alone (.bib)",
        ),
    ] = Path("report.html"),
    target: Target = None,
    metric: Metrics = None,
) -> None:
    """Write one HTML page about runs: table, curves, clients, time, settings, environment."""
    from raysim.results import report as page
    from raysim.results.citation import citation
    from raysim.results.packed import opened
    from raysim.storage.atomic import replace_file

    if out.suffix not in (".html", ".bib") or out.is_dir() or not out.parent.is_dir():
        raise SettingsError(f"--out={out}: must be a .html or .bib file in an existing folder")
    if out.suffix == ".html":
        page.check_extras()
    with opened(runs) as (paths, shown):
        write = _page if out.suffix == ".html" else citation
        text = shown(write(*_compared(paths, target, metric)))
    replace_file(out, lambda path: path.write_text(text, encoding="utf-8"))
    print_line(console, f"{'report' if out.suffix == '.html' else 'citation'}: {out}")


def _page(groups: list[RunGroup], columns: list[tuple[str, Metric, str]]) -> str:
    """Return the page of groups of runs."""
    from raysim.results import report as page
    from raysim.results.citation import citation
    from raysim.results.compare import comparison, comparison_tables, judged_columns
    from raysim.results.render import differences_of
    from raysim.workloads.datasets.labels import training_labels

    return page.report(
        [page.panel_of(groups)],
        comparison(groups, columns),
        comparison_tables(groups, judged_columns(columns)),
        training_labels,
        differences=differences_of(*comparison_tables(groups, columns)),
        cite=citation(groups, columns),
    )


def _compared(
    runs: list[Path], target: float | None, metrics: list[str] | None
) -> tuple[list[RunGroup], list[tuple[str, Metric, str]]]:
    """Return the groups of runs, and the columns of their table."""
    import raysim.workloads  # noqa: F401  # registers partitions, which old settings need
    from raysim.results.compare import compared_metrics, group_runs
    from raysim.results.metrics import parse_metric
    from raysim.results.runs import read_runs

    if target is not None and not 0 < target <= 1:
        raise SettingsError(f"--target={target}: must be above 0 and at most 1")
    further = [parse_metric(text) for text in metrics or ()]
    groups = group_runs(read_runs(runs), further)
    return groups, compared_metrics(groups, target, further)
