"""Tables of results as plain values, for JSON."""

from __future__ import annotations

from typing import Any

from raysim.results.render.arrow import to_arrow
from raysim.results.tables import ResultTable


def to_document(table: ResultTable) -> dict[str, Any]:
    """Return a table with an object per cell; values are as measured.

    Published values are in the cell's `published_unit`. The fields of a cell are the columns
    of its Parquet file, except the notes, which are common.
    """
    cells = [
        {name: value for name, value in cell.items() if name != "notes"}
        for cell in to_arrow(table).to_pylist()
    ]
    return {
        "title": table.title,
        "metric": str(table.metric),
        "rows": [*table.rows],
        "columns": [*table.columns],
        "cells": cells,
        "notes": [*table.notes],
    }
