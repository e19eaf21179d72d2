"""Reading of `metrics.parquet`, with a row of numbers per round.

The fields of its schema hold the declarations of its columns, as metadata.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raysim.api.columns import Column, Scored
from raysim.errors import SettingsError

TEXTS, SCORED = ("better", "unit", "fold", "title"), "scored"
"""Parts of a declaration in the metadata of a field: texts, and a list as JSON."""


def read_metrics(path: Path, rounds: int) -> pa.Table:
    """Return a table of rounds; checks its footer before reading rows.

    Args:
        path: The file.
        rounds: The number of rounds in the settings.

    Raises:
        OSError, ValueError, pa.ArrowException: the file is missing or damaged, has more rows than
            rounds, or columns that are no numbers.
    """
    with pq.ParquetFile(path) as file:
        rows, schema = file.metadata.num_rows, file.schema_arrow
        if rows > rounds:
            raise ValueError(f"{rows} rows of at most {rounds} rounds")
        if again := [name for name, count in Counter(schema.names).items() if count > 1]:
            raise ValueError(f"two columns are named {again[0]!r:.80}")
        if "round" not in schema.names or not pa.types.is_integer(schema.field("round").type):
            raise ValueError("no column has the numbers of the rounds")
        numeric = (
            *(pa.types.is_integer, pa.types.is_floating),
            *(pa.types.is_boolean, pa.types.is_null),
        )
        for field in schema:
            if not any(holds(field.type) for holds in numeric):
                raise ValueError(f"column {field.name!r:.80} holds {field.type!s:.80}, not numbers")
        return file.read()


def with_declared(table: pa.Table, columns: Mapping[str, Column]) -> pa.Table:
    """Return a table with the declarations of its columns in the fields."""
    return table.cast(pa.schema([_field(field, columns) for field in table.schema]))


def _field(field: pa.Field, columns: Mapping[str, Column]) -> pa.Field:
    column = columns.get(field.name)
    return declared_field(column, field.type) if column else field


def declared_field(column: Column, kind: pa.DataType) -> pa.Field:
    """Return a field of a table that holds a column's declaration."""
    known = {part: getattr(column, part) or "" for part in TEXTS}
    known[SCORED] = json.dumps(column.scored) if column.scored else ""
    written = {key: text for key, text in known.items() if text or key == "better"}
    return pa.field(column.name, kind, metadata=written)


def declared_in(schema: pa.Schema) -> dict[str, Column]:
    """Return the columns of a table as they are declared in its fields; a damaged one is none."""
    return {field.name: _read(field) for field in schema}


def _read(field: pa.Field) -> Column:
    texts = {key.decode("utf-8", "replace"): text for key, text in (field.metadata or {}).items()}
    known = {part: texts[part].decode("utf-8", "replace") for part in TEXTS if texts.get(part)}
    try:
        scored = Scored(*map(str, json.loads(texts[SCORED]))) if SCORED in texts else None
        return Column(field.name, **known, scored=scored)
    except (SettingsError, TypeError, ValueError):
        return Column(field.name or "-")
