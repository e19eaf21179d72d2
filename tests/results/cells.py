"""Cells of tables, with the declarations of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from raysim.api.columns import OF_ENGINE
from raysim.results.metrics import parse_metric
from raysim.results.tables import ResultCell
from raysim.storage.column_names import OF_SCORES

Place = tuple[str, str]
COLUMNS = {**OF_ENGINE, **OF_SCORES}


def declared(cells: Mapping[Place, ResultCell], metric: str) -> tuple[ResultCell, ...]:
    """Return cells at their places, with the column of their metric, or else of the given one."""
    columns = {cell.metric: parse_metric(cell.metric or metric).column for cell in cells.values()}
    return tuple(
        replace(cell, row=row, column=column, declared=COLUMNS.get(columns[cell.metric]))
        for (row, column), cell in cells.items()
    )
