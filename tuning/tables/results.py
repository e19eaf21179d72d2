"""Results of a table's runs: measured figures beside published ones, written in four formats."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from raysim.core.given import decides_result, override_text
from raysim.results.metrics import parse_metric
from raysim.results.render import grid_of, to_arrow, to_html, to_latex, to_markdown
from raysim.results.render.grid import shown
from raysim.results.runs import read_run, result_settings
from raysim.results.tables import ResultCell, ResultTable, differing_settings
from raysim.storage.atomic import replace_file
from raysim.tuning.tables.folder import TableFolder
from raysim.tuning.tables.plan import PlannedCell, TablePlan
from raysim.tuning.tables.runs import TableRun

FILES = ("table.md", "table.tex", "table.html", "table.parquet")
Place = tuple[str, str]
"""Row and column of a cell."""


@dataclass(frozen=True)
class _Ended:
    """A run that has ended.

    Attributes:
        value: The metric of a finished run.
        error: Why it has none, where it failed or diverged.
        settings: Settings on which the result depends, by dotted key.
    """

    value: float | None = None
    error: str = ""
    settings: Mapping[str, Any] | None = None


class TableResults:
    """Figures of the runs in a table's folder; a run that has ended is read once."""

    def __init__(self, plan: TablePlan, folder: TableFolder) -> None:
        self._plan, self._folder = plan, folder
        self._ended: dict[Path, _Ended] = {}
        self._shown = [
            cell
            for cell in plan.cells
            if cell.name in folder.seeds or (cell.chosen and cell.missing)
        ]

    def write(self) -> ResultTable:
        """Write table.md, table.tex, table.html and table.parquet; return the table."""
        table = self.table()
        grid = grid_of(table)
        texts = (to_markdown(grid), to_latex(grid), to_html(grid))
        *paths, parquet = (self._folder.path / name for name in FILES)
        for path, text in zip(paths, texts, strict=True):
            _write_text(path, text)
        replace_file(parquet, lambda aside: pq.write_table(to_arrow(table), aside))
        return table

    def figure(self, run: TableRun) -> str:
        """Return the figure of a run that has ended, as text."""
        ended = self._ended[self._folder.run(run.cell, run.seed)]
        paper = self._plan.table
        metric, unit = paper.metric_of(run.cell.paper), paper.unit_of(run.cell.paper)
        if ended.value is None:
            return ended.error or f"{metric} not reached"
        return f"{metric} {shown(ended.value, unit)} {unit}".rstrip()

    def table(self) -> ResultTable:
        """Return the table of all cells that the folder has runs of, or whose data is missing."""
        paper = self._plan.table
        ended = {cell: self._runs(cell) for cell in self._shown}
        places = {_place(cell) for cell in self._shown}
        return ResultTable(
            title=f"{paper.title} ({paper.source})",
            metric=paper.metric,
            unit=paper.unit,
            rows=tuple(row for row in paper.rows if row in {row for row, _ in places}),
            columns=tuple(name for name in paper.columns if name in {name for _, name in places}),
            cells=_with_differences(
                {_place(cell): _result_cell(cell, runs) for cell, runs in ended.items()},
                {_place(cell): _first_settings(runs) for cell, runs in ended.items()},
            ),
            notes=tuple(self._notes(ended)),
            ratio_to=paper.baseline,
        )

    def _runs(self, cell: PlannedCell) -> dict[int, _Ended]:
        """Return the runs of a cell that have ended, by seed."""
        found = {}
        for seed in cell.seeds(self._folder.seeds.get(cell.name, 0)):
            path = self._folder.run(cell, seed)
            if path not in self._ended and (ended := self._read(cell, seed)):
                self._ended[path] = ended
            if path in self._ended:
                found[seed] = self._ended[path]
        return found

    def _read(self, cell: PlannedCell, seed: int) -> _Ended | None:
        if (error := self._folder.failure(cell, seed)) is not None:
            return _Ended(error=error)
        if not self._folder.is_finished(cell, seed):
            return None
        record = read_run(self._folder.run(cell, seed))
        if record.state == "diverged":
            return _Ended(error="its loss is not finite")
        metric = parse_metric(self._plan.table.metric_of(cell.paper))
        return _Ended(metric.of(record), settings=result_settings(record))

    def _notes(self, ended: Mapping[PlannedCell, Mapping[int, _Ended]]) -> Iterator[str]:
        """Yield what a reader must know besides the figures."""
        plan, paper = self._plan, self._plan.table
        shown = [cell for cell in ended if not cell.missing]
        if shortened := {c.full_rounds for c in shown if c.settings.rounds < c.full_rounds}:
            yield f"Shortened to {plan.options.rounds} of {_span(shortened)} rounds."
        counts = {self._folder.seeds[cell.name] for cell in shown}
        if any(count < paper.seeds for count in counts):
            yield f"Shortened to {_span(counts)} of {paper.seeds} seeds."
        changed = {k: v for k, v in plan.options.overrides.items() if decides_result(k)}
        if changed:
            listed = ", ".join(override_text(key, value) for key, value in changed.items())
            yield f"Settings changed for all runs: {listed}."
        runs = sum(self._folder.seeds[cell.name] for cell in shown)
        if waiting := runs - sum(map(len, ended.values())):
            yield f"Unfinished: {waiting} of {runs} runs."
        for cell, found in ended.items():
            if cell.paper.text:
                yield f"{cell.label}: the paper prints {cell.paper.text!r}."
            for seed, run in found.items():
                if run.error:
                    yield f"{cell.label}, seed {seed}: {run.error}"
        if paper.note:
            yield paper.note


def _place(cell: PlannedCell) -> Place:
    return cell.paper.row, cell.paper.column


def _result_cell(cell: PlannedCell, runs: Mapping[int, _Ended]) -> ResultCell:
    paper = cell.paper
    return ResultCell(
        values={seed: run.value for seed, run in runs.items() if not run.error},
        diverged=sum(bool(run.error) for run in runs.values()),
        published=paper.value,
        published_deviation=paper.deviation,
        suspect=paper.suspect,
        missing=cell.missing,
        metric="" if cell.analysis else paper.metric,
        unit=paper.unit,
    )


def _first_settings(runs: Mapping[int, _Ended]) -> Mapping[str, Any] | None:
    return next((run.settings for run in runs.values() if run.settings), None)


def _with_differences(
    cells: Mapping[Place, ResultCell], settings: Mapping[Place, Mapping[str, Any] | None]
) -> dict[Place, ResultCell]:
    """Return cells with the settings in which they differ from the other rows of their column.

    Settings of the method make a row, and those that differ in every row.
    """
    found = dict(cells)
    for column in dict.fromkeys(column for _, column in cells):
        rows = {row: given for (row, name), given in settings.items() if name == column and given}
        differing = differing_settings(rows, dict.fromkeys(rows, _of_rows(rows)))
        for row, values in differing.items():
            found[row, column] = replace(found[row, column], differing=values)
    return found


def _of_rows(rows: Mapping[str, Mapping[str, Any]]) -> Collection[str]:
    """Return the keys that make the rows of a table."""
    keys = dict.fromkeys(key for values in rows.values() for key in values)
    distinct = {
        key
        for key in keys
        if len(rows) > 2 and len({repr(values.get(key)) for values in rows.values()}) == len(rows)
    }
    return {key for key in keys if key.startswith("method.")} | distinct


def _span(numbers: Collection[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def _write_text(path: Path, text: str) -> None:
    replace_file(path, lambda aside: aside.write_text(text, encoding="utf-8"))
