"""Damages of a file or folder: what disks, copies, other programs and newer versions leave."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sqlite3
import struct
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyarrow import ipc
from safetensors.torch import load_file, save_file

NEWER = 99
"""Schema version that no raysim has yet."""
FIGURES = (("param_value", "trial_params"), ("value", "trial_values"))
"""Column and table of a trial's first parameter and of its value."""
HUGE = 2**26
"""Bytes that are appended, as a hole."""


class NotApplicableError(Exception):
    """The damage does not exist for this kind of file."""


def truncate(path: Path) -> None:
    """Cut off the second half."""
    size = _size(path)
    os.truncate(path, size // 2)


def flip(path: Path, share: float) -> None:
    """Flip the lowest bit of the byte at a share of the file's length, or of a database's value."""
    size = _size(path)
    at = _figure(path, share) if path.suffix == ".db" else int(share * (size - 1))
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def _figure(database: Path, share: float) -> int:
    """Return where the mantissa of a trial's value lies, or early in the file, of a parameter.

    The closed database has in itself what was in its write-ahead log.
    """
    column, table = FIGURES[share > 0.5]
    with closing(sqlite3.connect(database)) as opened:
        (figure,) = opened.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchone()  # noqa: S608
    return database.read_bytes().index(struct.pack(">d", figure)) + 4


def empty(path: Path) -> None:
    """Remove the content of a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
        path.mkdir()
    else:
        _size(path)
        path.write_bytes(b"")


def delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def replace_by_folder(path: Path) -> None:
    if path.is_dir():
        raise NotApplicableError
    path.unlink()
    path.mkdir()


def replace_by_garbage(path: Path) -> None:
    """Put random bytes in place of a file, as many, or a file of them in place of a folder."""
    size = 1000 if path.is_dir() else max(path.stat().st_size, 10)
    delete(path)
    path.write_bytes(random.Random(0).randbytes(size))


def enlarge(path: Path) -> None:
    """Append a hole."""
    if path.is_dir():
        raise NotApplicableError
    os.truncate(path, path.stat().st_size + HUGE)


def replace_by_link(path: Path) -> None:
    """Put a symbolic link in its place that leads nowhere."""
    delete(path)
    path.symlink_to(path.parent / "nowhere")


def make_newer(path: Path) -> None:
    """Turn a file into what a newer version might write."""
    change = NEWER_FILES.get("" if path.is_dir() else path.suffix)
    if change is None:
        raise NotApplicableError
    change(path)


def _newer_json(path: Path) -> None:
    if path.name.startswith("trace_"):
        raise NotApplicableError  # the format is Perfetto's
    values = json.loads(path.read_text())
    content = {key: value for key, value in values.items() if key != "seal"} | {"schema": NEWER}
    if "seal" in values:
        text = json.dumps(content, sort_keys=True)
        content["seal"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(content, indent=2))


def _newer_parquet(path: Path) -> None:
    pq.write_table(_newer_table(pq.read_table(path)), path)


def _newer_arrow(path: Path) -> None:
    with pa.OSFile(str(path), "rb") as source:
        table = _newer_table(ipc.open_file(source).read_all())
    with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _newer_table(table: pa.Table) -> pa.Table:
    wider = table.append_column("from_newer", pa.array([1] * len(table)))
    return wider.replace_schema_metadata({"schema": str(NEWER)})


def _newer_tensors(path: Path) -> None:
    tensors = load_file(path) | {"from_newer": torch.zeros(1)}
    save_file(tensors, path, {"schema": str(NEWER)})


def _newer_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE version_info SET schema_version = ?", (NEWER,))
        database.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")


NEWER_FILES: Mapping[str, Callable[[Path], None]] = {
    ".json": _newer_json,
    ".parquet": _newer_parquet,
    ".arrow": _newer_arrow,
    ".safetensors": _newer_tensors,
    ".db": _newer_database,
}

DAMAGES: Mapping[str, Callable[[Path], None]] = {
    "truncated": truncate,
    "flipped early": lambda path: flip(path, 0.1),
    "flipped late": lambda path: flip(path, 0.9),
    "emptied": empty,
    "deleted": delete,
    "folder": replace_by_folder,
    "garbage": replace_by_garbage,
    "huge": enlarge,
    "dangling link": replace_by_link,
    "newer version": make_newer,
}
"""Damages by name."""


def _size(path: Path) -> int:
    """Return a file's size.

    Raises:
        NotApplicableError: it is a folder, or has no content.
    """
    if path.is_dir() or not path.stat().st_size:
        raise NotApplicableError
    return path.stat().st_size
