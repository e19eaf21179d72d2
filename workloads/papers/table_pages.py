"""Pages of `raysim list tables`: the tables of all papers, and one with its published values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from raysim.results.tables import ResultCell
from raysim.workloads.papers.preset import ORIGINS
from raysim.workloads.tables import TABLES, PaperCell, PaperTable, find

NONE = "-"
"""Mark of a cell without a published value."""


def page(name: str) -> RenderableType:
    """Return the list of tables, or the page of one."""
    return paper_table(find(name)) if name else paper_tables()


def paper_tables() -> Table:
    """Return the list of tables: cells are those with a published value, and all of them."""
    listed = Table(
        *("name", "description", "cells", "metric", "published in"),
        title="tables",
        title_justify="left",
        box=None,
    )
    listed.columns[2].justify = "right"
    for table in TABLES.values():
        published = sum(cell.is_published for cell in table.cells)
        count = str(published) if published else f"0 of {len(table.cells)}"
        others = len(table.metrics) - 1
        metric = f"{table.metric} and {others} more" if others else table.metric
        listed.add_row(table.name, table.title, count, metric, table.source)
    total = sum(cell.is_published for table in TABLES.values() for cell in table.cells)
    listed.caption = f"{total} published values; raysim list tables NAME prints them"
    listed.caption_justify = "left"
    return listed


def paper_table(table: PaperTable) -> RenderableType:
    """Return the page of a table: values, doubts, needs of cells, and origins of settings."""
    doubts = list(dict.fromkeys(cell.suspect for cell in table.cells if cell.suspect))
    citation = table.paper.citation if table.paper else ""
    lines = [table.title, table.source, citation]
    lines += [f"metric: {_metric(table.metric, table.unit)}", f"seeds: {len(table.seeds)}"]
    if table.baseline:
        lines.append(f"the paper states ratios of rounds to: {table.baseline}")
    lines += table.notes
    parts: list[RenderableType] = [
        Text(table.name, style="bold"),
        Text("\n".join(lines)),
        _values(table, doubts),
    ]
    footnotes = [f"{_mark(number)} suspect: {doubt}" for number, doubt in enumerate(doubts)]
    if footnotes := [*footnotes, *_needs(table)]:
        parts.append(Text("\n".join(footnotes)))
    presets = dict.fromkeys(cell.preset for cell in table.cells)
    others = Text(f"all others, and deviations: raysim list presets {' | '.join(presets)}")
    parts.append(Group(_origins(table), others))
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))


def _values(table: PaperTable, doubts: list[str]) -> Table:
    """Return the values, a line for each column of the table: settings are many, methods few.

    A metric stands next to them if it is not the table's.
    """
    shown = Table("", box=None)
    for row in table.rows:
        shown.add_column(row, justify="right", overflow="fold")
    shown.add_column("metric" if len(table.metrics) > 1 else "", overflow="fold")
    for column in table.columns:
        cells = [table.cell(row, column) for row in table.rows]
        metric = cells[0].metric and _metric(cells[0].metric, table.unit_of(cells[0]))
        shown.add_row(column, *(_value(cell, doubts) for cell in cells), metric)
    return shown


def _metric(metric: str, unit: str) -> str:
    return f"{metric} in {unit}" if unit else metric


def _value(cell: ResultCell, doubts: list[str]) -> Text:
    text = cell.text or (NONE if cell.published is None else f"{cell.published:g}")
    deviation = "" if cell.published_deviation is None else f" ± {cell.published_deviation:g}"
    mark = f" {_mark(doubts.index(cell.suspect))}" if cell.suspect else ""
    return Text(f"{text}{deviation}{mark}")


def _mark(number: int) -> str:
    return f"[{number + 1}]"


def _needs(table: PaperTable) -> Iterator[str]:
    """Yield which analyses cells need, and which files that cannot be fetched are not there."""
    analyses = Counter(table.parsed_metric(cell).analysis for cell in table.cells)
    del analyses[""]
    yield from (f"{count} cells need the analysis {name}" for name, count in analyses.items())
    by_preset: dict[str, list[PaperCell]] = {}
    for cell in table.cells:
        by_preset.setdefault(cell.preset, []).append(cell)
    missing: dict[str, int] = {}
    for cells in by_preset.values():
        if lacking := cells[0].missing:
            missing[lacking] = missing.get(lacking, 0) + len(cells)
    yield from (f"{count} cells need files: {lacking}" for lacking, count in missing.items())


def _origins(table: PaperTable) -> Table:
    """Return the origins of the settings in which cells differ from their presets."""
    marks = {key: mark for cell in table.cells for key, mark in cell.origins.items()}
    shown = Table("origin", "settings", box=None)
    for origin in ORIGINS:
        if keys := [key for key, mark in marks.items() if mark == origin]:
            shown.add_row(origin, Text("  ".join(keys)))
    return shown
