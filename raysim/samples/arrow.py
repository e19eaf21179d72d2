"""Prepared data on disk: one memory-mapped Arrow file per split.

All workers of a node map the same file, so its pages are in memory once, and opening takes the same
time for a thousand samples and for a million. A split that is larger than memory is written as
several record batches, and its inputs are gathered from the mapped batches on demand.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.samples.client_indices import Indices
from raysim.samples.data import Split


def checksum(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ConcatArray:
    """Inputs [N, ...] in several arrays, read as if concatenated; indexing copies samples.

    It has the `len`, `shape` and `dtype` of the concatenation, and takes a slice or sample numbers
    as index. Samples are gathered from mapped pages, which the system reclaims when memory is
    short: a process holds only the samples that it copied.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays
        self._starts = np.cumsum([0, *map(len, arrays)])
        self._rows = np.arange(self._starts[-1])
        self.shape: tuple[int, ...] = (len(self._rows), *arrays[0].shape[1:])
        self.dtype: np.dtype[Any] = arrays[0].dtype

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice | Indices) -> Array:
        """Return the samples of a slice, or of sample numbers [n], as a new array [n, ...]."""
        wanted = self._rows[rows]  # [n]; as NumPy does, it counts from the end, and checks
        samples = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        part = np.searchsorted(self._starts, wanted, side="right") - 1
        # One copy per run of samples in one array, straight into the result.
        cuts = [0, *(np.flatnonzero(np.diff(part)) + 1), len(wanted)]
        for first, last in pairwise(cuts):
            if first < last:
                inside = wanted[first:last] - self._starts[part[first]]
                out = samples[first:last]
                np.take(self._arrays[part[first]], inside, axis=0, out=out, mode="clip")
        return samples


def _column(values: Array) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    width = int(np.prod(values.shape[1:], dtype=np.int64))
    return pa.FixedSizeListArray.from_arrays(flat, width) if values.ndim > 1 else flat


def _batch(split: Split) -> pa.RecordBatch:
    parts = {"x": split.x, "y": split.y, **split.columns}
    arrays = {name: np.asarray(values) for name, values in parts.items()}
    columns = {name: _column(values) for name, values in arrays.items()}
    fields = [
        pa.field(name, column.type, metadata={"shape": json.dumps(arrays[name].shape[1:])})
        for name, column in columns.items()
    ]
    return pa.record_batch(list(columns.values()), schema=pa.schema(fields))


def write_split(path: str | Path, split: Split | Iterable[Split]) -> None:
    """Write a split and its checksum to temporary files, and rename both into place.

    A dataset's `prepare` returns the paths of files written this way:

        raysim.write_split(path, raysim.Split(x, y, {"client": writers}))

    Args:
        path: The file.
        split: The samples, or an iterable of pieces with inputs of one shape and dtype; each piece
            is written and released.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    batches = map(_batch, [split] if isinstance(split, Split) else split)
    first = next(batches)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)
    digest = path.with_suffix(".sha256")
    digest.with_name(f".{digest.name}.{os.getpid()}").write_text(checksum(temporary))
    digest.with_name(f".{digest.name}.{os.getpid()}").replace(digest)
    temporary.replace(path)


def verify_split(path: Path) -> None:
    """Check a prepared file against its checksum.

    Raises:
        DataError: the file is damaged; the message names it and the next step.
    """
    digest = path.with_suffix(".sha256")
    if not digest.exists() or digest.read_text() != checksum(path):
        raise DataError(
            f"{path}: prepared data is damaged (its sha256 is not the recorded one):"
            " delete the file, and the next run prepares it again"
        )


def recorded_checksum(path: Path) -> str:
    """Return the sha256 of a prepared file, from the file next to it if there is one."""
    digest = path.with_suffix(".sha256")
    return digest.read_text() if digest.exists() else checksum(path)


def open_split(path: Path) -> Split:
    """Map a prepared split; inputs and targets are read-only views of the file's pages.

    Inputs in several record batches become a `ConcatArray`; the other arrays are concatenated.

    Raises:
        DataError: the file was not written by `write_split`.
    """
    try:
        return _open_split(path)
    except (OSError, ValueError, LookupError, TypeError) as error:  # pyarrow raises these
        raise DataError(
            f"{path}: cannot be read as prepared data: {error}; a dataset's `prepare` writes it"
            " with raysim.write_split(path, raysim.Split(x, y))"
        ) from error


def _open_split(path: Path) -> Split:
    file = pa.ipc.open_file(pa.memory_map(str(path)))
    # Batch by batch: a table's `combine_chunks` would copy them.
    batches = [file.get_batch(number) for number in range(file.num_record_batches)]
    if lacking := {"x", "y"} - {*file.schema.names}:
        raise ValueError(f"has no column {min(lacking)}")
    if shapeless := [f.name for f in file.schema if b"shape" not in (f.metadata or {})]:
        raise ValueError(f"column {shapeless[0]} does not say its shape")
    arrays = {
        field.name: [_values(batch.column(number), field) for batch in batches]
        for number, field in enumerate(file.schema)
    }
    if len(batches) == 1:
        whole = {name: parts[0] for name, parts in arrays.items()}
        return Split(whole.pop("x"), whole.pop("y"), whole)
    x = cast("Array", ConcatArray(arrays.pop("x")))
    whole = {name: np.concatenate(parts) for name, parts in arrays.items()}
    return Split(x, whole.pop("y"), whole)


def _values(column: pa.Array, field: pa.Field) -> Array:
    shape = json.loads(field.metadata[b"shape"])
    flat = column.flatten() if shape else column
    values: Array
    if pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type):
        values = np.from_dlpack(flat)  # `to_numpy` would import pandas, a fifth of a second
    else:
        values = flat.to_numpy(zero_copy_only=not pa.types.is_string(flat.type))
    return values.reshape(len(column), *shape)
