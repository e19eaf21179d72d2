"""Names of the columns of a user's tables in memory: DataFrames, Arrow tables, their rows.

Tables of all sets of samples are put in the order of the first one's columns. None is taken by
position, which may hold another column in another set.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from raysim.errors import DataError, visible

Names = tuple[Hashable, ...]
SHOWN = 8
"""Most names of columns in an error."""


class ColumnOrder:
    """Order of tables' columns: every table of inputs or targets takes the first table's order."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, Names | None]] = {}

    def ordered(self, name: str, part: str, values: Any) -> Any:
        """Return a table with its columns in the first one's order, other values as they are.

        Args:
            name: Name of the samples in errors: `client 3`.
            part: The part of the samples: `inputs`, `targets`.
            values: Values of the samples, along the first dimension.

        Raises:
            DataError: the table has other columns than the first one, or one of both has no names.
        """
        if isinstance(values, Sequence) and any(map(_is_row, values)):
            return [self._ordered(f"{name}, sample {i}", part, row) for i, row in enumerate(values)]
        return self._ordered(name, part, values)

    def _ordered(self, name: str, part: str, values: Any) -> Any:
        names = _names(values)
        if names is None and (*getattr(values, "shape", [1]), 1)[0] == 0:
            return values  # of no samples
        if names and (doubled := [column for column in names if names.count(column) > 1]):
            raise DataError(f"{name}: two columns of the {part} are named {_shown(doubled[:1])}")
        first, known = self._first.setdefault(part, (name, names))
        if names == known:
            return values
        if names is None or known is None or {*names} != {*known}:
            raise DataError(
                f"{name}: {part} have {_told(names)}, but {first} has {_told(known)}; columns are"
                " taken by name, so all must have the same"
            )
        return values.select([*known]) if hasattr(values, "column_names") else values[[*known]]


def _names(values: Any) -> Names | None:
    """Return the names of a table's columns; None if it has none, or numbers in their place."""
    columns = getattr(values, "column_names", None)  # of Arrow; its `columns` are the values
    if columns is None and len(getattr(values, "shape", ())) == 2:
        columns = getattr(values, "columns", None)
    if _is_row(values):
        columns = values.index
    names = None if columns is None else (*columns,)
    return None if names == (*range(len(names or ())),) else names


def _is_row(values: Any) -> bool:
    """Return whether values are a row of a table: a Series of pandas with words for its index."""
    if not hasattr(values, "to_numpy") or getattr(values, "ndim", None) != 1:
        return False
    index = getattr(values, "index", None)
    return index is not None and all(isinstance(label, str) for label in index)


def _told(names: Names | None) -> str:
    return "no names of columns" if names is None else f"the columns {_shown(names)}"


def _shown(names: Sequence[Hashable]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return visible(", ".join(map(str, names[:SHOWN]))) + more
