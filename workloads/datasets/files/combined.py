"""Sources of several files: a client in each, or targets next to inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from raysim.errors import DataError
from raysim.workloads.datasets.files.source import (
    ArrayKind,
    Batches,
    Source,
    as_columns,
    shown,
    side_by_side,
)

PLAIN_NUMBER = re.compile("0|[1-9][0-9]{0,17}")
"""Name that is a number as it is written: `00` is another client than `0`."""


def of_clients(path: Path, parts: Mapping[str, Source]) -> Source:
    """Return the rows of the clients' sources, with the name of each row's client.

    Args:
        path: The folder of all sources.
        parts: The source of each client, by its name; names that are all numbers are numbers.

    Raises:
        DataError: two sources have other columns.
    """
    first = next(iter(parts.values()))
    for part in parts.values():
        if other := sorted({*part.names} ^ {*first.names}):
            raise DataError(f"{part.path}: {shown(other[0])} is not in each file of {path}")
    column = next(name for name in ("client", "name of the client") if name not in first.names)
    plain = all(map(PLAIN_NUMBER.fullmatch, parts))
    starts: dict[str, int] = {}

    def read(wanted: tuple[str, ...]) -> Batches:
        names, done = tuple(name for name in wanted if name != column), 0
        for name, source in parts.items():
            starts[name] = done
            for batch in source.read(names or first.names[:1]):
                done += len(batch)
                client = np.full(len(batch), int(name) if plain else name)
                both = {True: batch, False: as_columns({column: client})}
                yield side_by_side(
                    {column_name: both[column_name in names] for column_name in wanted}
                )

    def origin(row: int) -> tuple[Path, int]:
        *_, (name, start) = ((name, start) for name, start in starts.items() if start <= row)
        return parts[name].file_of(row - start)

    names = first.names if first.client else (*first.names, column)
    files = tuple(file for source in parts.values() for file in source.files)
    return Source(path, names, read, files, first.client or column, origin=origin)


def with_target(source: Source, other: Source) -> Source:
    """Return a source with the only column of another, row by row, which is its target.

    Raises:
        DataError: the other has several columns; or, as they are read, another number of rows.
    """
    named = [name for name in other.names if name]
    if len(named) != 1:
        raise DataError(
            f"{other.path}: has the columns {shown(', '.join(named))}; a file of targets must have"
            " one"
        )
    (name_here,) = named
    column = name_here if name_here not in source.names else f"{name_here} of {other.path.name}"

    def read(wanted: tuple[str, ...]) -> Batches:
        inputs = tuple(name for name in wanted if name != column)
        if column not in wanted:
            yield from source.read(inputs)
            return
        targets = (batch.rename_columns([column]) for batch in other.read((name_here,)))
        if not inputs:
            yield from targets
            return
        for x, y in _aligned(source, source.read(inputs), other, targets):
            yield side_by_side({name: y if name == column else x for name in wanted})

    def arrays() -> dict[str, ArrayKind]:
        kinds = {
            column if name == name_here else name: kind for name, kind in other.arrays().items()
        }
        return {**source.arrays(), **kinds}

    files = (*source.files, *other.files)
    names = (*source.names, column)
    return replace(source, names=names, read=read, files=files, arrays=arrays, target=column)


def _aligned(
    one: Source, ones: Batches, other: Source, others: Batches
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yield batches of the same rows of two sources.

    Raises:
        DataError: they have other numbers of rows.
    """
    x, y = next(ones, None), next(others, None)
    while x is not None and y is not None:
        rows = min(len(x), len(y))
        yield x.slice(0, rows), y.slice(0, rows)
        x = x.slice(rows) if rows < len(x) else next(ones, None)
        y = y.slice(rows) if rows < len(y) else next(others, None)
    if x is not None or y is not None:
        more, fewer = (one, other) if y is None else (other, one)
        raise DataError(f"{more.path}: has more rows than {fewer.path}; must have as many")
