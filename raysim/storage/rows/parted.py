"""Parted tables: a folder of Parquet files; the last one is open.

When rows are written, the open file is replaced atomically; a long enough file is closed, so that
the rows in memory stay bounded. A checkpoint holds a copy of the open file and
the checksums of the closed ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysim.errors import RunError
from raysim.samples.arrow import checksum
from raysim.storage.atomic import remove, replace_file, sweep

FILE_ROWS, FILE_BYTES = 50_000, 2**25
"""Number of rows, and bytes in memory, at which a file is closed."""


class PartedTable:
    """Table in a folder of part files.

    Attributes:
        folder: The folder, to be read as one table.
        closed: Checksum of each closed file, by name.
    """

    def __init__(self, folder: Path, copy: str) -> None:
        """Set the folder, and the name of the open file's copy within a checkpoint."""
        self.folder, self._copy = folder, copy
        self.closed: dict[str, str] = {}
        self._rows: list[pa.Table] = []
        self._written = True

    @property
    def _open_path(self) -> Path:
        return self.folder / f"part-{len(self.closed):06d}.parquet"

    def add(self, rows: pa.Table) -> None:
        """Add rows, to be written by `write`."""
        self._rows.append(rows)
        self._written = False

    def write(self) -> None:
        """Write the rows of the open file, and close it if it is long enough."""
        if self._written:
            return
        table = pa.concat_tables(self._rows, promote_options="default")
        path = self._open_path
        full = len(table) >= FILE_ROWS or table.nbytes >= FILE_BYTES
        replace_file(path, lambda aside: pq.write_table(table, aside), durable=full)
        self._rows, self._written = [] if full else [table], True
        if full:
            self.closed[path.name] = checksum(path)

    def seal(self, folder: Path) -> Mapping[str, str]:
        """Copy the open file into a checkpoint's folder; return the closed files' checksums."""
        self.write()
        if self._rows:
            shutil.copyfile(self._open_path, folder / self._copy)
        return dict(self.closed)

    def check(self, closed: Mapping[str, str]) -> None:
        """Check that closed files are as they were sealed.

        Raises:
            OSError: a file is missing.
            ValueError: a file is damaged; the message names it.
        """
        for name, expected in closed.items():
            if checksum(self.folder / name) != expected:
                raise ValueError(f"{self.folder / name} does not match its checksum")

    def restore(self, folder: Path, closed: Mapping[str, str]) -> None:
        """Delete the files of later rounds, and write the open file as it was sealed."""
        self.closed = dict(closed)
        sweep(self.folder)
        for path in self.folder.glob("part-*.parquet"):
            if path.name not in self.closed:
                remove(path)
        if (folder / self._copy).exists():
            self.add(read_table(folder / self._copy))
            self.write()

    def clear(self) -> None:
        """Delete all rows."""
        remove(self.folder)


def with_names(columns: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return columns with the clients' names after their numbers, if clients have names.

    Args:
        columns: Columns [n], one of them `client`.
        names: Names of all clients [K]; empty if they have numbers alone.
    """
    if not names:
        return dict(columns)
    of_rows = np.array(names)[np.asarray(columns["client"], np.int64)]
    return {"client": columns["client"], "name": of_rows, **columns}


def read_table(path: Path) -> pa.Table:
    """Return a table.

    Raises:
        RunError: the file is missing or damaged.
    """
    with reading(path):
        return pq.read_table(path)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise errors of a damaged table in the body as RunError with its path."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        cause = " ".join(str(error).split())
        raise RunError(
            f"{path}: is damaged ({cause}); restore it, or start the run again in another `out`"
        ) from error
