"""Arrow tables of results, for Parquet and JSON: a row per cell, its values by seed included."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from raysim.results.tables import ResultTable
from raysim.user_input import override_text

VALUES = pa.list_(pa.struct([("seed", pa.int64()), ("value", pa.float64())]))
SCHEMA = pa.schema(
    [
        ("row", pa.string()),
        ("column", pa.string()),
        ("metric", pa.string()),
        ("mean", pa.float64()),
        ("deviation", pa.float64()),
        ("n", pa.int64()),
        ("seeds", pa.int64()),
        ("diverged", pa.int64()),
        ("failed", pa.int64()),
        ("best", pa.bool_()),
        ("difference", pa.float64()),
        ("difference_low", pa.float64()),
        ("difference_high", pa.float64()),
        ("p", pa.float64()),
        ("ratio", pa.float64()),
        ("published", pa.float64()),
        ("published_deviation", pa.float64()),
        ("published_unit", pa.string()),
        ("suspect", pa.string()),
        ("missing", pa.string()),
        ("own_round", pa.string()),
        ("differing", pa.list_(pa.string())),
        ("values", VALUES),
        ("notes", pa.list_(pa.string())),
    ]
)


def to_arrow(table: ResultTable) -> pa.Table:
    """Return a row per cell; values are as measured, published ones in their unit."""
    rows = []
    best = {column: table.best(column) for column in table.columns}
    differences = {column: table.differences(column) for column in table.columns}
    for row in table.rows:
        for column in table.columns:
            cell, apart = table.cell(row, column), differences[column].get(row)
            rows.append(
                {
                    "row": row,
                    "column": column,
                    "metric": str(table.parsed_metric(cell)),
                    "mean": cell.mean,
                    "deviation": cell.deviation,
                    "n": len(cell.measured),
                    "seeds": cell.seeds,
                    "diverged": cell.diverged,
                    "failed": cell.failed,
                    "best": row in best[column],
                    "difference": apart and apart.mean,
                    "difference_low": apart and apart.low,
                    "difference_high": apart and apart.high,
                    "p": apart and apart.p,
                    "ratio": table.ratio(row, column),
                    "published": cell.published,
                    "published_deviation": cell.published_deviation,
                    "published_unit": table.unit_of(cell),
                    "suspect": cell.suspect,
                    "missing": cell.missing,
                    "own_round": cell.own_round,
                    "differing": [
                        override_text(*setting) for setting in sorted(cell.differing.items())
                    ],
                    "values": [{"seed": s, "value": v} for s, v in sorted(cell.values.items())],
                    "notes": list(table.notes),
                }
            )
    metadata = {"title": table.title, "metric": table.metric, "unit": table.unit}
    return pa.Table.from_pylist(rows, SCHEMA).replace_schema_metadata(metadata)


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
