"""CSV files, read column by column, with errors that name file and line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from raysim.errors import DataError

WHOLE = pa.int64()
TEXT = pa.string()
TIME = pa.timestamp("s")
"""Date and time as in 2101-10-20 19:08:00, or a date."""

ONE_THREAD = csv.ReadOptions(use_threads=False)
"""With several threads, pyarrow's errors do not name the row."""
NAMES = {WHOLE: "a whole number", TEXT: "a text", TIME: "a date and time (2101-10-20 19:08:00)"}


def find_csv(folder: Path, name: str, published: str) -> Path:
    """Return the path of a CSV file: NAME.csv or NAME.csv.gz.

    Raises:
        DataError: neither is there.
    """
    paths = folder / f"{name}.csv", folder / f"{name}.csv.gz"
    for path in paths:
        if path.is_file():
            return path
    raise DataError(
        f"{paths[0]}: not there; it is not downloaded: put it there, plain or as .gz, from"
        f" {published}"
    )


def read_csv(
    path: Path, columns: Mapping[str, pa.DataType], optional: frozenset[str] = frozenset()
) -> pa.Table:
    """Read some columns of a CSV file with a header; the header's case is ignored.

    Args:
        path: The file; gzipped if its name ends in .gz.
        columns: Column names in upper case, and types: WHOLE, TEXT or TIME.
        optional: Columns that may be empty; rows with an empty value are dropped.

    Raises:
        DataError: the file is damaged, a column is missing, or a value is missing or wrong; the
            message names the line.
    """
    try:
        with csv.open_csv(path, ONE_THREAD) as reader:
            present = {name.upper(): name for name in reader.schema.names}
        if missing := [name for name in columns if name not in present]:
            raise DataError(
                f"{path}: has no column {', '.join(missing)}; it has {', '.join(present.values())}"
            )
        selected = [present[name] for name in columns]
        table = csv.read_csv(
            path,
            ONE_THREAD,
            csv.ParseOptions(ignore_empty_lines=False),
            csv.ConvertOptions(
                include_columns=selected,
                column_types=dict.fromkeys(selected, TEXT),
                strings_can_be_null=True,
                null_values=[""],
            ),
        )
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a CSV table ({error})") from error
    texts = table.rename_columns(list(columns))
    parsed = {name: _parsed(path, name, texts[name], kind) for name, kind in columns.items()}
    for name, values in parsed.items():
        if values.null_count and name not in optional:
            line = line_of(pc.index(values.is_null(), True).as_py())
            raise DataError(f"{path}: line {line}: {name} is empty; must have a value")
    return pa.table(parsed).drop_null()


def line_of(row: int) -> int:
    """Return the line number, from 1, of a row, from 0, in a file without optional columns."""
    return row + 2


def _parsed(path: Path, name: str, texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        for text in texts.unique().drop_null():
            try:
                text.cast(kind)
            except pa.ArrowInvalid as error:
                line = line_of(pc.index(texts, text).as_py())
                raise DataError(
                    f"{path}: line {line}: {name} is {text.as_py()!r}; must be {NAMES[kind]}"
                ) from error
        raise
