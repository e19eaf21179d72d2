"""Columns of a table before one is chosen to be predicted: what each holds.

Legend: n values of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from raysim.workloads.datasets.files.columns import MOST_WORDS, NEARLY_ALL
from raysim.workloads.datasets.files.kinds import Kind, Place, as_numbers
from raysim.workloads.datasets.files.source import Source, as_words, is_list, shown

FEW = 5
"""Most words of a column that are shown."""
SHOWN = 40
"""Most characters of a text that are shown."""


@dataclass
class FoundColumn:
    """A column of a table, after all batches have been seen.

    Attributes:
        name: Its name.
        kind: The kind of its values.
        words: Its different values, up to one more than MOST_WORDS.
        range: Its least and its largest number.
        stored: Type of values that are neither numbers, words nor lists, as it is stored.
    """

    name: str
    kind: Kind = field(default_factory=lambda: Kind({}))
    words: set[str] = field(default_factory=set)
    range: tuple[float, float] | None = None
    stored: str = ""

    def see(self, values: pa.Array, column: pa.Field, place: Place) -> None:
        """Take in a batch of the column [n].

        Raises:
            DataError: its lists differ in length, or hold no numbers.
        """
        if pa.types.is_temporal(values.type):
            self.stored = str(values.type)
            self.kind.count(values, place)
            return
        self.kind.see(values, column, place)
        if is_list(values.type):
            return
        if (numbers := as_numbers(values)) is not None and pc.count(numbers).as_py():
            least, largest = pc.min_max(numbers).values()
            before = self.range or (least.as_py(), largest.as_py())
            self.range = min(before[0], least.as_py()), max(before[1], largest.as_py())
        if len(self.words) <= MOST_WORDS:
            self.words |= {*pc.unique(pc.drop_null(as_words(values))).to_pylist()}

    @property
    def holds(self) -> str:
        """Its values, in words."""
        kind = self.kind
        if kind.arrays:
            shape, dtype = kind.arrays
            return f"arrays of {dtype}, {'x'.join(map(str, shape))}"
        if self.stored or not kind.present:
            return self.stored or "no values"
        if kind.numbers and self.range:
            return f"numbers from {self.range[0]:g} to {self.range[1]:g}, {self._many} different"
        if self.is_text:
            return f"text, {self._many} different: {shown(min(self.words)[:SHOWN])}, ..."
        few = ", ".join(map(shown, sorted(self.words)[:FEW])) + ", ..." * (len(self.words) > FEW)
        odd = f"; {kind.near} values are numbers" if kind.near else ""
        return f"{self._many} different words: {few}{odd}"

    @property
    def is_text(self) -> bool:
        """True if nearly all of its values differ, and most of them are of three words or more."""
        kind, differ = self.kind, len(self.words)
        if kind.numbers or kind.arrays or kind.readings:
            return False
        long = sum(word.count(" ") > 1 for word in self.words)
        return 2 * long > differ > min(MOST_WORDS, NEARLY_ALL * kind.present)

    @property
    def _many(self) -> str:
        different = len(self.words)
        return str(different) if different <= MOST_WORDS else f"more than {MOST_WORDS}"


def found_columns(source: Source) -> tuple[list[FoundColumn], int]:
    """Return the columns of a table, and its number of rows.

    Raises:
        DataError: the table is damaged, or lists of a column differ in length.
    """
    columns = [FoundColumn(name) for name in source.names if name]
    arrays = source.arrays()
    for column in columns:
        if column.name in arrays:
            column.kind.see_arrays(*arrays[column.name], column.name)
    unread = [column for column in columns if column.name not in arrays]
    rows = 0
    for batch in source.read(tuple(column.name for column in unread)) if unread else ():
        for column in unread:
            place = _from(rows)
            column.see(batch[column.name], batch.schema.field(column.name), place)
        rows += len(batch)
    return columns, rows


def _from(start: int) -> Place:
    return lambda index: f"row {start + index + 1}"
