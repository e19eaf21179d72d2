"""Tables of clients that a user gives: CSV or Parquet, with a column `client` and numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raysim.errors import DataError
from raysim.numbers.arrays import Integers


def read_table(path: Path, setting: str) -> dict[str, np.ndarray]:
    """Read the columns of a CSV or Parquet file: numbers only, with a column `client`.

    Raises:
        DataError: the file is missing, cannot be read, is no such table, or a client is not a
            whole number from 0.
    """
    import pyarrow as pa  # not needed by a run without tables
    import pyarrow.csv
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataError(f"{setting}={path}: there is no such file")
    try:
        read = pyarrow.csv.read_csv if path.suffix == ".csv" else pq.read_table
        table: pa.Table = read(path)
        arrays = [column.to_numpy() for column in table.columns]
    except (OSError, ValueError, pa.ArrowException) as error:
        cause = " ".join(str(error).split())
        raise DataError(f"{setting}={path}: cannot be read as a table: {cause}") from error
    names = table.column_names
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{setting}={path}: column {twice[0]!r} is there twice")
    columns = dict(zip(names, arrays, strict=True))
    if "client" not in columns or not len(columns["client"]):
        raise DataError(f"{setting}={path}: must have a column `client`, and a row per client")
    for name, values in columns.items():
        if values.dtype.kind not in "iuf":
            raise DataError(f"{setting}={path}: column {name!r} must hold numbers")
    listed = columns["client"]
    whole = np.isfinite(listed) & (listed >= 0) & (np.floor(listed) == listed)
    if not whole.all():
        row = int(np.argmin(whole))
        client = "empty" if np.isnan(listed[row]) else f"{listed[row]}"
        raise DataError(
            f"{setting}={path}: row {row + 1}: client is {client}; must be a whole number from 0"
        )
    return columns


def rows_of(path: Path, setting: str, listed: np.ndarray, clients: int) -> Integers:
    """Return the row of each client [K]; rows of further clients are ignored.

    Args:
        path: The file.
        setting: The setting that names it, for errors.
        listed: Its column `client`.
        clients: K, the number of clients.

    Raises:
        DataError: a client is missing, or there twice.
    """
    order = np.argsort(listed, kind="stable")
    positions = np.searchsorted(listed[order], np.arange(clients))
    rows: Integers = order[np.minimum(positions, len(order) - 1)]
    if len(missing := np.flatnonzero(listed[rows] != np.arange(clients))):
        raise DataError(
            f"{setting}={path}: client {missing[0]} is missing ({len(missing)} of {clients} are)"
        )
    check_once(path, setting, listed)
    return rows


def check_once(path: Path, setting: str, listed: np.ndarray) -> None:
    """Check that the column `client` of a table has no client twice.

    Raises:
        DataError: it has one.
    """
    ordered = np.sort(listed)
    if len(twice := np.flatnonzero(np.diff(ordered) == 0)):
        raise DataError(f"{setting}={path}: client {ordered[twice[0]]:g} is there twice")
