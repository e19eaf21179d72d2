"""Reading of `metrics.parquet`, with a row of numbers per round."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

PRE_PASSES = 100
"""Most rows besides those of the rounds: the first version gave pre-passes rounds below 1."""


def read_metrics(path: Path, rounds: int) -> pa.Table:
    """Return a table of rounds, whose footer is checked before rows are read.

    Args:
        path: The file.
        rounds: The number of rounds in the settings.

    Raises:
        OSError, ValueError, pa.ArrowException: the file is missing or damaged, has more rows than
            rounds, or columns that are no numbers.
    """
    with pq.ParquetFile(path) as file:
        rows, schema = file.metadata.num_rows, file.schema_arrow
        if rows > rounds + PRE_PASSES:
            raise ValueError(f"{rows} rows of at most {rounds} rounds")
        if again := [name for name, count in Counter(schema.names).items() if count > 1]:
            raise ValueError(f"two columns are named {again[0]!r:.80}")
        if "round" not in schema.names or not pa.types.is_integer(schema.field("round").type):
            raise ValueError("no column has the numbers of the rounds")
        check_numbers(schema)
        return file.read()


def check_numbers(schema: pa.Schema) -> None:
    """Check that columns hold numbers or no values.

    Raises:
        ValueError: a column holds something else; the message names it.
    """
    numeric = (
        *(pa.types.is_integer, pa.types.is_floating),
        *(pa.types.is_boolean, pa.types.is_null),
    )
    for field in schema:
        if not any(holds(field.type) for holds in numeric):
            raise ValueError(f"column {field.name!r:.80} holds {field.type!s:.80}, not numbers")
