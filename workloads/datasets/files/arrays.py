"""Arrays in files: .npz archives and folders of .npy, read in blocks of rows.

Arrays of one length are the columns of a table. `x_train` and `y_train` next to `x_test` and
`y_test` are the columns x and y of the two sets. Nothing is unpickled. From a compressed archive
raysim reads no more bytes than its arrays declare and than the archive's size makes plausible.
"""

from __future__ import annotations

import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.workloads.datasets.files.source import (
    Batches,
    Source,
    Sources,
    as_columns,
    reading,
    shown,
)

BLOCK_BYTES = 16 * 2**20
"""Bytes of an array that are read at once."""
LARGE_BYTES, MOST_RATIO = 2**28, 100
"""Least size and least ratio of sizes of a compressed array that is taken for a bomb."""
DAMAGE: tuple[type[Exception], ...] = (
    *(zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError),
    *(lzma.LZMAError, SyntaxError, tokenize.TokenError),
)
"""Errors of damaged archives and headers."""


@dataclass(frozen=True)
class Stored:
    """Array in a file: its header, and how its bytes are read from the first one on."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    open: Callable[[], AbstractContextManager[IO[bytes]]]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def archive(path: Path) -> Sources:
    """Return the arrays of an .npz file.

    Raises:
        DataError: it is damaged, holds objects, or is a bomb.
    """
    with reading(path, "an .npz archive", *DAMAGE), zipfile.ZipFile(path) as file:
        members = [info for info in file.infolist() if info.filename.endswith(".npy")]
    stored = {}
    for info in members:
        check_ratio(path, info.filename, info.compress_size, info.file_size)
        name = info.filename.removesuffix(".npy")
        stored[name] = _stored(path, name, partial(_Member, path, info.filename), info.file_size)
    return _sources(path, stored, (path,))


def _bytes(path: Path) -> IO[bytes]:
    return path.open("rb")


def folder(path: Path, files: list[Path]) -> Sources:
    """Return the arrays of a folder's .npy files.

    Raises:
        DataError: one is damaged, or holds objects.
    """
    stored = {f.stem: _stored(f, f.stem, partial(_bytes, f), f.stat().st_size) for f in files}
    return _sources(path, stored, tuple(files))


class _Member(AbstractContextManager[IO[bytes]]):
    """Member of an archive, opened with the archive and closed with it."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    def __enter__(self) -> IO[bytes]:
        self._archive = zipfile.ZipFile(self._path)
        self._file = self._archive.open(self._name)
        return self._file

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._archive.close()


def check_ratio(path: Path, name: str, size: int, declared: int) -> None:
    """Check that a compressed array is no bomb.

    Raises:
        DataError: it declares many times the bytes that it has.
    """
    if declared > max(LARGE_BYTES, MOST_RATIO * size):
        raise DataError(
            f"{path}: {shown(name)} has {size} bytes and declares {declared}; at most"
            f" {MOST_RATIO} times as many are read: save it uncompressed"
        )


def _stored(
    path: Path, name: str, opened: Callable[[], AbstractContextManager[IO[bytes]]], size: int
) -> Stored:
    with reading(path, "an array", *DAMAGE), opened() as file:
        shape, transposed, dtype = _header(file)
        if dtype.hasobject:
            convert = CONVERT if name == OF_CLIENT else PLAIN
            raise DataError(f"{path}: {shown(name)} is a pickle, which is not read; {convert}")
        if transposed and len(shape) > 1:
            raise DataError(
                f"{path}: {shown(name)} is stored by columns; save numpy.ascontiguousarray of it"
            )
        declared = math.prod(shape) * dtype.itemsize
        if declared != size - file.tell():
            raise DataError(
                f"{path}: {shown(name)} declares {declared} bytes, and has {size - file.tell()}"
            )
    return Stored(shape, dtype, opened)


PLAIN = "save numbers or words, as numpy.asarray(list_of_rows, dtype='float32'), or dtype=str"
OF_CLIENT = "data"
"""Name of the array with a client's samples in a file of PFLlib."""
CONVERT = (
    'write plain arrays x and y: python -c "import sys, numpy as np; [np.savez(f,'
    " **np.load(f, allow_pickle=True)['data'].item()) for f in sys.argv[1:]]\" train/*.npz"
    " test/*.npz, of files that you trust"
)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    major, _ = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if major == 2:
        read = np.lib.format.read_array_header_2_0
    elif major != 1:
        raise ValueError(f"version {major} of its format is not read; save a plain array")
    header: tuple[tuple[int, ...], bool, np.dtype[np.generic]] = read(file)
    return header


def _sources(path: Path, stored: Mapping[str, Stored], files: tuple[Path, ...]) -> Sources:
    """Return a source per set if arrays are named `x_train` or `train_x`, else one for all."""
    sets: dict[str, dict[str, Stored]] = {"train": {}, "test": {}}
    unread = []
    for name, array in stored.items():
        split, bare = next(filter(None, (_of_set(name, split) for split in sets)), ("", name))
        if split:
            sets[split][bare] = array
        else:
            unread.append(name)
    if not all(sets.values()):
        return {"": _source(path, stored, files)}
    return {
        split: replace(_source(path, arrays, files), unread=tuple(unread))
        for split, arrays in sets.items()
    }


def _of_set(name: str, split: str) -> tuple[str, str] | None:
    """Return the set and the rest of an array's name; None if it does not name this set."""
    bare = name.removesuffix(f"_{split}").removeprefix(f"{split}_")
    return None if bare == name else (split, bare)


def _source(path: Path, stored: Mapping[str, Stored], files: tuple[Path, ...]) -> Source:
    lengths = {name: array.shape[0] if array.shape else 0 for name, array in stored.items()}
    if not lengths or len({*lengths.values()}) > 1:
        told = ", ".join(f"{shown(name)} {length}" for name, length in lengths.items())
        raise DataError(f"{path}: its arrays must have one length; it has {told or 'no array'}")
    for name, array in stored.items():
        if array.dtype.kind not in "fiubU" or array.dtype == np.longdouble:
            raise DataError(f"{path}: {shown(name)} holds {array.dtype}; must be numbers or words")
        if array.row_bytes == 0:
            raise DataError(
                f"{path}: {shown(name)} has shape {[*array.shape]}; a sample must have values"
            )

    def read(wanted: tuple[str, ...]) -> Batches:
        chosen = {name: stored[name] for name in wanted}
        rows = max(BLOCK_BYTES // max(array.row_bytes for array in chosen.values()), 1)
        blocks = {name: _blocks(path, array, rows) for name, array in chosen.items()}
        for parts in zip(*blocks.values(), strict=True):
            yield as_columns(dict(zip(blocks, parts, strict=True)))

    kinds = {n: (a.shape[1:], a.dtype) for n, a in stored.items() if math.prod(a.shape[1:]) > 1}
    images = tuple(
        n for n, (shape, dtype) in kinds.items() if dtype == np.uint8 and len(shape) in (2, 3)
    )
    client = "client" if "client" in stored else ""
    return Source(path, tuple(stored), read, files, client, lambda: kinds, images)


def _blocks(path: Path, array: Stored, rows: int) -> Iterator[Array]:
    with reading(path, "an array", *DAMAGE), array.open() as file:
        _header(file)
        for start in range(0, array.shape[0], rows):
            count = min(rows, array.shape[0] - start)
            content = file.read(count * array.row_bytes)
            block = np.frombuffer(content, array.dtype).reshape(count, *array.shape[1:])
            block = block.astype(block.dtype.newbyteorder("="), copy=False)
            yield block.reshape(count) if array.row_bytes == array.dtype.itemsize else block
