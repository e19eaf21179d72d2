"""Tables in TOML files: papers' tables, and custom ones, which `workloads.sweeps` reads.

A table has a preset, settings, a metric and a unit for all cells, and `rows` and `columns` with a
name each, and a preset, settings, a metric, a unit or a reason to doubt their values (`suspect`) of
their own. A row may have published values: a value and a deviation per column. A value in words is
printed by the paper in place of a number; with "" it prints none. A cell's settings are the
table's, the column's and the row's, in this order; "none" turns one off. A row's metric and unit
are before a column's. Single cells are doubted by `suspects`.

A paper's file holds `[[table]]` entries, each with all keys of OF_PAPER. Each setting there has an
origin: it is one of the table's `printed`, `inferred` or `chosen` keys.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from raysim.api.components import suggest
from raysim.errors import SettingsError, told_of, visible
from raysim.user_input import dotted
from raysim.workloads.papers.preset import origins
from raysim.workloads.papers.table import PaperCell, PaperTable
from raysim.workloads.presets import PRESETS, Paper
from raysim.workloads.sweep_values import counted, seeds_of

SEEDS = 3
"""Seeds of a cell if the paper prints no number: the fewest that give a deviation."""
METRIC = "last_ten(test_accuracy)"
OF_PAPER = ("title", "reference", "metric", "unit", "columns", "rows")
"""Keys that the tables of all papers have, besides a name."""


class _Keys(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Line(_Keys):
    """A row or a column.

    What a paper prints there is a row's alone, whose metric, if it has one, is before a column's.
    """

    name: str
    preset: str = ""
    settings: dict[str, Any] = {}
    suspect: str = ""
    metric: str = ""
    unit: str | None = None
    values: tuple[float | str, ...] = ()
    deviations: tuple[float, ...] = ()


class _Suspect(_Keys):
    row: str
    column: str
    reason: str


class TableEntry(_Keys):
    """Keys of a table; the last four are a sweep's; a paper's table may have `seeds` of them."""

    name: str = ""
    title: str = ""
    preset: str = ""
    reference: str = ""
    metric: str = METRIC
    unit: str | None = None
    settings: dict[str, Any] = {}
    columns: tuple[Line, ...] = ()
    rows: tuple[Line, ...] = ()
    baseline: str = ""
    note: str = ""
    reference_row: str = ""
    printed: str = ""
    inferred: str = ""
    chosen: str = ""
    suspects: tuple[_Suspect, ...] = ()
    metrics: tuple[str, ...] = ()
    seeds: int | str | tuple[int, ...] | None = None
    axes: dict[str, tuple[Any, ...] | str] = {}
    tune: dict[str, Any] = {}


def read_tables(path: Path) -> list[PaperTable]:
    """Read the tables of a paper.

    Raises:
        SettingsError: the file is no TOML, has an unknown key or lacks one, or a table is
            inconsistent.
    """
    with told_of(f"{path}: "):
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))["table"]
        except ValueError as error:
            raise SettingsError(str(error)) from error
        return [_of_paper(values) for values in tables]


def validated(values: Mapping[str, Any]) -> TableEntry:
    """Return the keys of a table in a file.

    Raises:
        SettingsError: one is unknown or lacking, or has a value of another type.
    """
    try:
        return TableEntry.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, text = ".".join(str(part) for part in first["loc"]), first["msg"]
        if first["type"] == "extra_forbidden":
            *parents, last = first["loc"]
            text = f"no such key; {suggest(str(last), _keys_at(parents))}"
        raise SettingsError(f"{visible(place)}: {text}") from error


def _keys_at(location: Sequence[int | str]) -> list[str]:
    """Return the keys that a file may have at a location; each of its names is a list of lines."""
    kind: type[BaseModel] = TableEntry
    for part in location:
        if isinstance(part, str):
            kind, *_ = get_args(kind.model_fields[part].annotation)
    return [*kind.model_fields]


def _of_paper(values: Mapping[str, Any]) -> PaperTable:
    """Return a table of a paper.

    Raises:
        SettingsError: a key is wrong, or the table is inconsistent; the message names it.
    """
    with told_of(f"{values['name']}: "):
        entry = validated(values)
        columns = [combined((c,), c.name, c.metric or entry.metric) for c in entry.columns]
        _, seeds = counted(seeds_of(entry.seeds or SEEDS, "seeds"))
        table = to_table(entry, columns, seeds)
        papers = {PRESETS[cell.preset].paper for cell in table.cells if cell.preset in PRESETS}
        if problem := next(_problems(entry, table.cells, papers), ""):
            raise SettingsError(problem)
    return replace(table, paper=papers.pop())


def _problems(
    entry: TableEntry, cells: Sequence[PaperCell], papers: Collection[Paper | None]
) -> Iterator[str]:
    """Yield the faults of a paper's table: of its keys, presets, and origins of settings."""
    keys = entry.model_fields_set
    yield from (f"{key}: is lacking" for key in OF_PAPER if key not in keys)
    yield from (f"{key}: is a sweep's" for key in ("metrics", "axes", "tune") if key in keys)
    for cell in cells:
        if cell.preset not in PRESETS:
            yield f"{cell.row}, {cell.column}: there is no preset {cell.preset!r}"
        yield from (f"{key}: has no origin" for key, mark in cell.origins.items() if not mark)
    set_keys = {key for cell in cells for key in cell.settings}
    if len(papers) > 1 or None in papers:
        yield "its presets must be of one paper"
    marked = origins(entry.printed, entry.inferred, entry.chosen)
    yield from (f"{key}: has an origin, but no value" for key in marked if key not in set_keys)


def combined(lines: Sequence[Line], name: str, metric: str) -> Line:
    """Return the column of a name and a metric in which lines are combined.

    Its settings are theirs, of two with the same key the later; its preset, unit and doubt are
    those of the first line that has them.

    Raises:
        SettingsError: a line has values, as only rows do.
    """
    if any(line.values or line.deviations for line in lines):
        raise SettingsError(f"column {visible(name)}: values and deviations are a row's")
    return Line(
        name=name,
        preset=next((line.preset for line in lines if line.preset), ""),
        settings={key: value for line in lines for key, value in dotted(line.settings).items()},
        suspect=next((line.suspect for line in lines if line.suspect), ""),
        metric=metric,
        unit=next((line.unit for line in lines if line.unit is not None), None),
    )


def to_table(
    entry: TableEntry,
    columns: Sequence[Line],
    seeds: Sequence[int],
    groups: Mapping[str, tuple[str, str]] | None = None,
    tune: Mapping[str, Any] | None = None,
) -> PaperTable:
    """Return the table of an entry's rows and of columns.

    Args:
        entry: The entry.
        columns: The columns.
        seeds: Seeds of each cell, counted from its setting `seed`.
        groups: Group of a column and its name there, by its full name.
        tune: Table `[tune]` of a sweep.

    Raises:
        SettingsError: the table is inconsistent.
    """
    if problem := next(_inconsistencies(entry, [column.name for column in columns]), ""):
        raise SettingsError(problem)
    unit = entry.unit
    if unit is None:
        first = next(_cells(entry, columns, {}), None)
        asked = {column.metric for column in columns} | {row.metric for row in entry.rows}
        units = {metric: unit_of(metric, first) for metric in asked}
        column_units = {units[column.metric] for column in columns if column.unit is None}
        unit = min(column_units, default="") if len(column_units) < 2 else None
    return PaperTable(
        name=entry.name,
        title=entry.title,
        paper=None,
        reference=entry.reference,
        metric=entry.metric,
        unit=unit or "",
        rows=tuple(row.name for row in entry.rows),
        columns=tuple(column.name for column in columns),
        cells=tuple(_cells(entry, columns, units if unit is None else {})),
        seeds=seeds,
        row_keys={row.name: frozenset(dotted(row.settings)) for row in entry.rows},
        baseline=entry.baseline,
        notes=tuple(entry.note.splitlines()),
        reference_row=entry.reference_row,
        groups=groups or {},
        tune=tune or {},
    )


def _cells(
    entry: TableEntry, columns: Sequence[Line], units: Mapping[str, str]
) -> Iterator[PaperCell]:
    """Yield the cells of a table, row by row, those without a unit with that of their metric.

    Raises:
        SettingsError: one has no preset.
    """
    marks = origins(entry.printed, entry.inferred, entry.chosen)
    doubts = {(suspect.row, suspect.column): suspect.reason for suspect in entry.suspects}
    for row in entry.rows:
        for number, column in enumerate(columns):
            groups = (entry.settings, column.settings, row.settings)
            settings = {k: v for group in groups for k, v in dotted(group).items()}
            preset = row.preset or column.preset or entry.preset
            if not preset:
                raise SettingsError(f"{visible(f'{row.name}, {column.name}')}: has no preset")
            value = row.values[number] if row.values else None
            metric = row.metric or column.metric
            unit = column.unit if row.unit is None else row.unit
            yield PaperCell(
                row=row.name,
                column=column.name,
                preset=preset,
                settings={
                    k: None if setting == "none" else setting for k, setting in settings.items()
                },
                origins={key: marks.get(key, "") for key in settings},
                published=None if isinstance(value, str) else value,
                published_deviation=row.deviations[number] if row.deviations else None,
                text=value if isinstance(value, str) else "",
                suspect=doubts.get((row.name, column.name)) or row.suspect or column.suspect,
                metric="" if metric == entry.metric else metric,
                unit=units.get(metric) if unit is None else unit,
            )


def _inconsistencies(entry: TableEntry, columns: Sequence[str]) -> Iterator[str]:
    """Yield the inconsistencies of a table."""
    rows = [row.name for row in entry.rows]
    for kind, names in (("rows", rows), ("columns", columns)):
        twice = (name for name in names if names.count(name) > 1)
        yield from (f"{visible(name)}: two {kind} have this name" for name in twice)
    for row in entry.rows:
        for kind, numbers in (("values", row.values), ("deviations", row.deviations)):
            if len(numbers) not in (0, len(columns)):
                yield f"row {visible(row.name)}: {len(numbers)} {kind} for {len(columns)} columns"
    for suspect in entry.suspects:
        if suspect.row not in rows or suspect.column not in columns:
            yield f"suspects: there is no cell {visible(f'{suspect.row}, {suspect.column}')}"
    for key, name in (("baseline", entry.baseline), ("reference_row", entry.reference_row)):
        if name and name not in rows:
            yield f"{key}: there is no row {visible(name)}"


def unit_of(metric: str, cell: PaperCell | None) -> str:
    """Return the unit of a metric, as the runs of a cell declare it.

    It is empty for a metric or settings that are wrong; the plan says so, with the cell's name.
    """
    from raysim.results.metrics import parse_metric  # which imports torch

    try:
        parsed = parse_metric(metric)
        return parsed.values_in(parsed.column_before(cell.resolve())).unit if cell else ""
    except SettingsError:
        return ""
