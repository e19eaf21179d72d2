"""Reading of tables from TOML.

A file holds `[[table]]` entries: name, title, reference, metric, unit, and a preset and settings
for all cells; `columns` and `[[table.rows]]` with a name each, and a preset, settings, metric, unit
or reason to doubt their values (`suspect`) of their own; in a row, a value and a deviation per
column. A value in words is printed by the paper in place of a number; a row may have no values. A
cell's settings are the table's, the column's and the row's, in this order; "none" turns one off.
Each has an origin, the table's `printed`, `inferred` or `chosen` keys. Single cells are doubted by
`[[table.suspects]]`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from raysim.core.errors import SettingsError
from raysim.core.user_input import dotted
from raysim.workloads.papers.preset import origins
from raysim.workloads.papers.table import PaperCell, PaperTable
from raysim.workloads.presets import PRESETS

SEEDS = 3
"""Seeds of a cell if the paper prints no number: the fewest that give a deviation."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Line(_Entry):
    """A row, a column, or all of a table."""

    name: str
    preset: str = ""
    settings: dict[str, Any] = {}


class _Column(_Line):
    metric: str = ""
    unit: str | None = None
    suspect: str = ""


class _Row(_Line):
    suspect: str = ""
    values: tuple[float | str, ...] = ()
    deviations: tuple[float, ...] = ()


class _Suspect(_Entry):
    row: str
    column: str
    reason: str


class _Table(_Line):
    title: str
    reference: str
    metric: str
    unit: str
    columns: tuple[_Column, ...]
    rows: tuple[_Row, ...]
    seeds: int = SEEDS
    baseline: str = ""
    note: str = ""
    reference_row: str = ""
    printed: str = ""
    inferred: str = ""
    chosen: str = ""
    suspects: tuple[_Suspect, ...] = ()


class _File(_Entry):
    table: tuple[_Table, ...]


def read_tables(path: Path) -> list[PaperTable]:
    """Read the tables of a file.

    Raises:
        SettingsError: the file is no TOML, has an unknown key or lacks one, or a table is
            inconsistent.
    """
    try:
        entries = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8"))).table
        return [_built(entry) for entry in entries]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"{path}: {place}: {first['msg']}") from error
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error


def _built(entry: _Table) -> PaperTable:
    """Return a table.

    Raises:
        ValueError: the table is inconsistent; the message names it.
    """
    rows, columns = ([line.name for line in lines] for lines in (entry.rows, entry.columns))
    cells = tuple(_cells(entry))
    if problem := next(_problems(entry, rows, columns, cells), ""):
        raise ValueError(f"{entry.name}: {problem}")
    papers = {PRESETS[cell.preset].paper for cell in cells}
    paper = papers.pop()
    if paper is None or papers:
        raise ValueError(f"{entry.name}: its presets must be of one paper")
    return PaperTable(
        entry.name,
        entry.title,
        paper,
        entry.reference,
        entry.metric,
        entry.unit,
        tuple(rows),
        tuple(columns),
        cells,
        entry.seeds,
        {row.name: frozenset(dotted(row.settings)) for row in entry.rows},
        entry.baseline,
        entry.note,
        entry.reference_row,
    )


def _cells(entry: _Table) -> Iterator[PaperCell]:
    """Yield the cells of a table, row by row."""
    marks = origins(entry.printed, entry.inferred, entry.chosen)
    doubts = {(each.row, each.column): each.reason for each in entry.suspects}
    for row in entry.rows:
        for number, column in enumerate(entry.columns):
            lines = (entry, column, row)
            settings = {k: v for line in lines for k, v in dotted(line.settings).items()}
            value = row.values[number] if number < len(row.values) else None
            reason = doubts.get((row.name, column.name)) or row.suspect or column.suspect
            yield PaperCell(
                row.name,
                column.name,
                row.preset or column.preset or entry.preset,
                {key: None if value == "none" else value for key, value in settings.items()},
                {key: marks.get(key, "") for key in settings},
                None if isinstance(value, str) else value,
                row.deviations[number] if number < len(row.deviations) else None,
                value if isinstance(value, str) else "",
                reason,
                column.metric,
                column.unit,
            )


def _problems(
    entry: _Table, rows: Sequence[str], columns: Sequence[str], cells: Sequence[PaperCell]
) -> Iterator[str]:
    """Yield the inconsistencies of a table."""
    for kind, names in (("row", rows), ("column", columns)):
        yield from (f"{kind} {name}: is there twice" for name in names if names.count(name) > 1)
    for row in entry.rows:
        for kind, given in (("values", row.values), ("deviations", row.deviations)):
            if len(given) not in (0, len(columns)):
                yield f"row {row.name}: {len(given)} {kind} for {len(columns)} columns"
    for each in entry.suspects:
        if each.row not in rows or each.column not in columns:
            yield f"suspects: there is no cell {each.row}, {each.column}"
    named = {"baseline": entry.baseline, "reference_row": entry.reference_row}
    known = ("", *rows)
    yield from (f"{key}: there is no row {row}" for key, row in named.items() if row not in known)
    for cell in cells:
        if cell.preset not in PRESETS:
            yield f"{cell.row}, {cell.column}: there is no preset {cell.preset!r}"
        yield from (f"{key}: has no origin" for key, mark in cell.origins.items() if not mark)
    set_keys = {key for cell in cells for key in cell.settings}
    marked = origins(entry.printed, entry.inferred, entry.chosen)
    yield from (f"{key}: has an origin, but no value" for key in marked if key not in set_keys)
