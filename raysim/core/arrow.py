"""Prepared data on disk: one memory-mapped Arrow file per split.

All workers of a node map the same file, so its pages are in memory once, and opening it costs the
same whether it holds a thousand samples or a million.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raysim.core.data import Split
from raysim.core.errors import DataError


def checksum(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _column(values: npt.NDArray[Any]) -> tuple[pa.Array, dict[str, Any]]:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    width = int(np.prod(values.shape[1:], dtype=np.int64))
    column = pa.FixedSizeListArray.from_arrays(flat, width) if values.ndim > 1 else flat
    return column, {"shape": list(values.shape[1:])}


def write_split(path: Path, split: Split) -> None:
    """Write a split aside, with its checksum beside it, and rename both into place."""
    arrays = {"x": split.x, "y": split.y, **split.columns}
    built = {name: _column(values) for name, values in arrays.items()}
    fields = [
        pa.field(name, column.type, metadata={"shape": json.dumps(meta["shape"])})
        for name, (column, meta) in built.items()
    ]
    schema = pa.schema(fields)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([c for c, _ in built.values()], schema=schema))
    digest = path.with_suffix(".sha256")
    digest.with_name(f".{digest.name}.{os.getpid()}").write_text(checksum(aside))
    digest.with_name(f".{digest.name}.{os.getpid()}").replace(digest)
    aside.replace(path)


def verify_split(path: Path) -> None:
    """Check a prepared file against its checksum.

    Raises:
        DataError: the file is damaged; it names the file and what to do.
    """
    digest = path.with_suffix(".sha256")
    if not digest.exists() or digest.read_text() != checksum(path):
        raise DataError(
            f"{path}: prepared data is damaged (its sha256 is not the recorded one):"
            " delete the file, and the next run prepares it again"
        )


def open_split(path: Path) -> Split:
    """Map a prepared split; inputs and labels are read-only views of the file's pages."""
    # `write_split` writes one batch; a table's `combine_chunks` would copy it.
    batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        shape = json.loads(field.metadata[b"shape"])
        flat = column.flatten() if shape else column
        zero_copy = not pa.types.is_string(flat.type)
        values = flat.to_numpy(zero_copy_only=zero_copy)
        arrays[field.name] = values.reshape(batch.num_rows, *shape)
    return Split(arrays.pop("x"), arrays.pop("y"), arrays)
