"""Division of rows into a training and a test set: by a fraction, a column or files.

Legend: N rows of a source, n of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.numbers.seeds import stream
from raysim.workloads.datasets.files.source import Source, as_words, is_missing, shown

SPLITS = ("train", "test")
FRACTION = 0.2
"""Fraction of the rows that is the test set, if nothing is said of it."""


@dataclass(frozen=True)
class Rows:
    """Rows of a source that belong to one split, read in batches any number of times.

    Attributes:
        source: The source.
        names: Columns to read.
        chosen: Whether each row of the source belongs to the split [N]; None: all do.
        column: Column that names each row's split; empty without one.
        split: Name of the split.
        needed: Columns that a row needs values in; rows without them are left out.
    """

    source: Source
    names: tuple[str, ...]
    chosen: Array | None = None
    column: str = ""
    split: str = ""
    needed: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for whole in self.whole():
            batch = whole.filter(pa.array(self.complete(whole))) if self.needed else whole
            if len(batch):
                yield batch

    def complete(self, batch: pa.RecordBatch) -> Array:
        """Return which rows [n] of a batch have all values that they need."""
        complete = np.ones(len(batch), dtype=bool)
        for name in self.needed:
            if name in batch.schema.names:
                complete &= ~is_missing(batch[name]).to_numpy(zero_copy_only=False)
        return complete

    def whole(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the split, including rows that lack a value."""
        read = (*self.names, self.column) if self.column else self.names
        start = 0
        for whole in self.source.read(read):
            batch = whole
            if self.chosen is not None:
                batch = whole.filter(pa.array(self.chosen[start : start + len(whole)]))
            elif self.column:
                batch = whole.filter(pa.array(_is_in(whole[self.column], self.column, self.split)))
            start += len(whole)
            if len(batch):
                yield batch

    def only(self, names: tuple[str, ...]) -> Rows:
        """Return the same rows with these columns, and the columns that decide which rows stay."""
        whole = [n for n, (_, dtype) in self.source.arrays().items() if dtype.kind in "biu"]
        deciding = [name for name in self.needed if name not in whole]
        return replace(self, names=tuple(dict.fromkeys((*names, *deciding))))


def _is_in(values: pa.Array, column: str, split: str) -> Array:
    words = pc.utf8_lower(as_words(values))
    known = pc.is_in(words, pa.array(SPLITS))
    if not pc.all(known).as_py() and len(known):
        other = values[pc.index(known, False).as_py()].as_py()
        raise DataError(
            f"dataset.split={shown(column)}: a row has {shown(other)}; must be train or test"
        )
    chosen: Array = pc.equal(words, split).to_numpy(zero_copy_only=False)
    return chosen


def check_divided(path: Path, split: float | str) -> None:
    """Check that no split is given for data that has a test set.

    Raises:
        DataError: one is.
    """
    if split != FRACTION:
        raise DataError(f"dataset.split={shown(split)}: {path} has its own test set; leave it out")


def by_fraction(fraction: float, rows: int) -> dict[str, Array]:
    """Return whether each of N rows belongs to the training and to the test set [N].

    Raises:
        DataError: a set is empty.
    """
    wanted = round(fraction * rows)
    if not 0 < wanted < rows:
        raise DataError(
            f"dataset.split={fraction:g}: of {rows} rows, {wanted} are for testing; both sets need"
            " one at least"
        )
    test = np.zeros(rows, dtype=bool)
    test[stream(0, "files").permutation(rows)[:wanted]] = True
    return {"train": ~test, "test": test}
