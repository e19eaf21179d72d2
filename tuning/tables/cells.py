"""Cells of a table, and their runs: cells of equal settings share a run.

Columns that differ only in their metric are read from the same run. The analyses needed by the
metrics of its cells are added to a run's settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from raysim.core.errors import SettingsError, told_of
from raysim.results.metrics import Metric, parse_metric
from raysim.tuning.runs.run import Run
from raysim.workloads.tables import PaperCell, PaperTable

ITSELF = "another model than the reference, whose comparison with itself is no measurement"
"""Needed for a cell that compares the reference with itself."""
ANOTHER = "; --metric gives the cells another metric"
"""Hint for a sweep's metric that a run does not have."""


@dataclass(frozen=True, eq=False)
class Cell:
    """Cell of a table with its run.

    Attributes:
        paper: The cell of the paper.
        run: Run of the cell's first seed.
        full_rounds: Rounds without shortening.
        chosen: Whether `--only` chooses the cell.
        lacking: Unmet needs besides data.
    """

    paper: PaperCell
    run: Run
    full_rounds: int
    chosen: bool
    lacking: str = ""

    @property
    def label(self) -> str:
        """Row and column."""
        return f"{self.paper.row}, {self.paper.column}"

    @property
    def missing(self) -> str:
        """Missing files that the user must provide for the cell, or other unmet needs."""
        return self.lacking or self.run.missing


def with_analyses(table: PaperTable, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of a table with the analyses of their metrics in the runs they share.

    Raises:
        SettingsError: a metric is invalid, or the run of a chosen cell does not give its value.
    """
    metrics = [_metric_of(table, cell.paper) for cell in cells]
    references = {c.paper.column: c.run for c in cells if c.paper.row == table.reference_row}
    analyses: dict[Run, dict[str, Run | None]] = {cell.run: {} for cell in cells}
    lacking: list[str] = []
    for cell, metric in zip(cells, metrics, strict=True):
        reference = references.get(cell.paper.column) if metric.takes_reference else None
        is_itself = reference == cell.run
        lacking.append(ITSELF if is_itself else "")
        if metric.analysis and not is_itself:
            analyses[cell.run][metric.analysis] = reference
    runs = _runs(table, cells, analyses)
    for cell, metric, problem in zip(cells, metrics, lacking, strict=True):
        if cell.chosen and not problem:
            with _named(table, cell.paper, "" if table.paper else ANOTHER):
                _check_metric(metric, runs[cell.run])
    return [
        replace(cell, run=runs[cell.run], lacking=problem)
        for cell, problem in zip(cells, lacking, strict=True)
    ]


def _named(table: PaperTable, cell: PaperCell, hint: str = "") -> AbstractContextManager[None]:
    """Add the cell's name, and a hint, to an error of settings."""
    return told_of(f"{table.name}: {cell.row}, {cell.column}: ", hint)


def _metric_of(table: PaperTable, cell: PaperCell) -> Metric:
    with _named(table, cell):
        return parse_metric(table.metric_of(cell))


def _check_metric(metric: Metric, run: Run) -> None:
    metric.check(run.settings)
    if metric.takes_reference and run.reference is None:
        raise SettingsError(f"{metric}: there is no reference with such settings")


def _runs(
    table: PaperTable, cells: Sequence[Cell], analyses: Mapping[Run, Mapping[str, Run | None]]
) -> dict[Run, Run]:
    """Return the runs with their analyses, by the runs without.

    Args:
        table: The table.
        cells: The cells.
        analyses: By run, the needed analyses of its cells, each with its reference, if any.
    """
    groups: dict[Run, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.run, []).append(cell)
    runs: dict[Run, Run] = {}
    for run in sorted(groups, key=lambda run: any(analyses[run].values())):  # references first
        settings, wanted = run.settings, analyses[run]
        if wanted:
            asked = [*dict.fromkeys([*settings.analysis, *wanted])]
            settings = settings.override({"analysis": asked})
        reference = next((runs[each] for each in wanted.values() if each), None)
        runs[run] = Run.of(_shared_label(table, groups[run]), settings, reference)
    return runs


def _shared_label(table: PaperTable, cells: Sequence[Cell]) -> str:
    """Return the row of the first cell, and its column or the common words of all columns.

    A metric at the end of a column's name, as in sweeps, is no part of the run's.
    """
    names = [cell.paper.column.removesuffix(table.metric_of(cell.paper)) for cell in cells]
    first, *others = (name.split() for name in names)
    shared = [word for word in first if all(word in words for words in others)]
    return ", ".join(filter(None, [cells[0].paper.row, " ".join(shared or first)]))
