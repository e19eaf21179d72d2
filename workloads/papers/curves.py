"""Figures that are curves of a table's runs: a panel for each column, a line for each row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from raysim.workloads.papers.figure import Figure, FigureRun
from raysim.workloads.tables import find

ACCURACY = {"test_accuracy": "test accuracy"}


def table_curves(
    table: str,
    columns: str,
    reference: str,
    values: Mapping[str, str],
    note: str = "",
    /,
    **other: Any,
) -> Figure:
    """Return the curves of a table's runs.

    Args:
        table: The table.
        columns: Regular expression of the columns that are drawn.
        reference: The paper's figure.
        values: The columns of the runs that are drawn, and their names.
        note: Deviations from the paper's figure.
        other: Other fields of the figure.
    """
    source = find(table)
    if source.paper is None:
        raise ValueError(f"{table}: is of no paper")
    cells = [cell for cell in source.cells if re.search(columns, cell.column)]
    names = [*values.values()]
    fields: dict[str, Any] = {
        "title": " and ".join(names).capitalize(),
        "table": "metrics",
        "axis": "" if len(names) > 1 else names[0],
        "options": {"apart": names} if len(names) > 1 else {},
    }
    return Figure(
        paper=source.paper,
        reference=reference,
        preset=cells[0].preset,
        runs=tuple(
            FigureRun(
                cell.row, cell.settings, cell.preset, panel=cell.column.removesuffix(" accuracy")
            )
            for cell in cells
        ),
        draw="curves",
        values=tuple(values),
        note=note,
        **{**fields, **other},
    )
