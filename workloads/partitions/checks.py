"""Checks that several partitions make of their data."""

from __future__ import annotations

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.samples.data import Split


def one_sample_each(data: Split, clients: int) -> None:
    """Require at least one sample per client.

    Raises:
        DataError: there are more clients than samples.
    """
    if clients > len(data):
        raise DataError(
            f"clients={clients}: the dataset has {len(data)} training samples;"
            " at most one client per sample"
        )


def column(data: Split, setting: str, name: str) -> Array:
    """Return the values [N] of a column that a setting names.

    Raises:
        DataError: the dataset has no such column, or it holds several values per sample.
    """
    single = sorted(key for key, values in data.columns.items() if values.ndim == 1)
    if name not in single:
        known = f"has {', '.join(single)}" if single else "has none"
        raise DataError(f"partition.{setting}={name}: no such column; this dataset {known}")
    return data.columns[name]
