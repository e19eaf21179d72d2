"""Source of samples: a table that can be read in batches of rows, any number of times.

Every format is read as such a table, so all settings work with all formats. A column of arrays is a
column of lists; `shape` in its field's metadata is the shape of a value.

Legend: n rows of a batch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.errors import DataError, visible
from raysim.numbers.arrays import Array
from raysim.user_input import override_text

MOST_COLUMNS = 10_000
"""Most columns of a table."""

NAN = ("nan", "+nan", "-nan")
"""Words that are read as a number that is none."""

ArrayKind = tuple[tuple[int, ...], np.dtype[Any]]
Batches = Iterator[pa.RecordBatch]
Given = Mapping[str, tuple[str, ...]]
"""Columns that are named already, by setting: `leave_out`, `categories`, `dates`."""


@dataclass(frozen=True)
class Source:
    """Samples of a split, or of both.

    Attributes:
        path: The file or folder, for errors.
        names: Names of the columns.
        read: Reads the columns of these names, in batches.
        files: The files that are read.
        client: Name of the column of natural clients that the format has; empty if it has none.
        arrays: Returns shape and type of columns that are known to hold arrays, before any is read.
        images: Names of the columns that hold images.
        target: Name of the column that the format has as the target; empty if it has none.
        unread: Names of files, folders or arrays of the path that are not read.
        origin: Returns the file and the row in it, from 0, of a row that was just read; None: path.
    """

    path: Path
    names: tuple[str, ...]
    read: Callable[[tuple[str, ...]], Batches]
    files: tuple[Path, ...]
    client: str = ""
    arrays: Callable[[], Mapping[str, ArrayKind]] = dict
    images: tuple[str, ...] = ()
    target: str = ""
    unread: tuple[str, ...] = ()
    origin: Callable[[int], tuple[Path, int]] | None = None

    def __post_init__(self) -> None:
        """Check the names.

        Raises:
            DataError: two columns have one name, or there are too many.
        """
        check_width(self.path, len(self.names))
        if doubled := sorted({n for n in self.names if n and self.names.count(n) > 1}):
            raise DataError(f"{self.path}: two columns are named {shown(doubled[0])}; rename one")

    def file_of(self, row: int) -> tuple[Path, int]:
        """Return the file and the row in it, from 0, of a row that was just read."""
        return (self.path, row) if self.origin is None else self.origin(row)


Sources = Mapping[str, Source]
"""Sources by split: `train` and `test`, or `""` for samples that are still to be divided."""


def check_width(path: Path, columns: int) -> None:
    """Check the number of columns of a table.

    Raises:
        DataError: it is too large.
    """
    if columns > MOST_COLUMNS:
        raise DataError(f"{path}: has {columns} columns; at most {MOST_COLUMNS} are read")


def shown(text: object) -> str:
    """Return a name or value of a file as it stands in a message."""
    return visible(repr(text) if isinstance(text, str) else str(text))[:80]


def naming(setting: str, name: str, names_by_setting: Given) -> str:
    """Return a setting that names one more column, as it is typed in a shell."""
    names = [*names_by_setting.get(setting, ()), name]
    is_plain = not {*",[]"} & {*"".join(names)}
    return visible(override_text(f"dataset.{setting}", ",".join(names) if is_plain else names))


ROW_OF_CSV = re.compile(r"\bRow #(\d+)")
"""A row in the errors of pyarrow's reader, which counts the header."""


@contextmanager
def reading(path: Path, what: str, *more: type[Exception]) -> Iterator[None]:
    """Turn the errors of a library that reads a file into one line.

    Raises:
        DataError: the file is damaged, or has another format than its name says.
    """
    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, *more) as error:
        text = visible(" ".join(str(error).split()))[:200]
        text = ROW_OF_CSV.sub(lambda match: f"row {int(match[1]) - 1}", text)
        raise DataError(f"{path}: cannot be read as {what}: {text}") from error


def side_by_side(batches: Mapping[str, pa.RecordBatch]) -> pa.RecordBatch:
    """Return the columns of these names, each from its batch, as one batch."""
    fields = [batch.schema.field(name) for name, batch in batches.items()]
    return pa.record_batch(
        [batch[name] for name, batch in batches.items()], schema=pa.schema(fields)
    )


def as_columns(arrays: Mapping[str, Array]) -> pa.RecordBatch:
    """Return arrays [n, ...] as the columns of a batch.

    Raises:
        DataError: an array has no values in a row.
    """
    columns, fields = [], []
    for name, values in arrays.items():
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        if 0 in values.shape[1:]:
            raise DataError(f"column {shown(name)}: its lists are empty; must hold numbers")
        if values.ndim > 1:
            flat = pa.FixedSizeListArray.from_arrays(flat, math.prod(values.shape[1:]))
        columns.append(flat)
        shape = {"shape": json.dumps(values.shape[1:])}
        fields.append(pa.field(name, flat.type, metadata=shape))
    return pa.record_batch(columns, schema=pa.schema(fields))


def as_array(column: pa.Array, about: pa.Field) -> Array:
    """Return a column of numbers or of lists of numbers as an array [n, ...].

    Raises:
        DataError: lists of one column differ in length, or hold no numbers.
    """
    shape, flat = [len(column)], column
    while is_list(flat.type):
        lengths = pc.unique(pc.list_value_length(flat))
        if lengths.null_count or len(lengths) > 1:
            raise DataError(
                f"column {shown(about.name)}: its lists differ in length; must be equal"
            )
        shape.append(lengths[0].as_py() if len(lengths) else 0)
        flat = flat.flatten()
    if flat.null_count or not is_number(flat.type):
        raise DataError(f"column {shown(about.name)}: its lists must hold numbers")
    if pa.types.is_decimal(flat.type):  # NumPy would hold objects
        flat = flat.cast(pa.float64())
    values: Array = flat.to_numpy(zero_copy_only=False).reshape(shape)
    inner = (about.metadata or {}).get(b"shape")
    return values.reshape(len(column), *json.loads(inner)) if inner else values


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column's values are lists."""
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column's values are numbers, or true and false."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def is_missing(values: pa.Array) -> pa.Array:
    """Return which values of a column are missing: null, not a number (NaN), or lists of such."""
    if is_list(values.type):
        inside = is_missing(pc.list_flatten(values))
        missing = values.is_null().to_numpy(zero_copy_only=False).copy()
        missing[pc.list_parent_indices(values).filter(inside).to_numpy()] = True
        return pa.array(missing)
    if pa.types.is_floating(values.type):
        return pc.is_null(values, nan_is_null=True)
    if not is_text(values.type):
        return values.is_null()
    words = pc.utf8_lower(pc.utf8_trim_whitespace(pc.cast(values, pa.string())))
    return pc.or_(values.is_null(), pc.is_in(words, pa.array(NAN)))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column's values are words."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def without_sign_of_zero(numbers: pa.Array) -> pa.Array:
    """Return floating-point numbers with -0.0 replaced by 0."""
    if pa.types.is_float16(numbers.type):  # Arrow does not compare float16
        numbers = pc.cast(numbers, pa.float32())
    return pc.if_else(pc.equal(numbers, 0), pa.scalar(0, numbers.type), numbers)


def as_words(values: pa.Array) -> pa.Array:
    """Return the values of a column as words without outer blanks; -0.0 as 0."""
    if pa.types.is_floating(values.type):
        values = without_sign_of_zero(values)
    return pc.utf8_trim_whitespace(pc.cast(values, pa.string()))
