"""Kinds of a table's columns: whether all values are numbers, words, dates or arrays.

Values of text are words until it is known that all of a column are numbers. Where most are, and
some are not, or only without signs, the column is neither: it is refused, since as words it would
be an input for each number.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.errors import DataError
from raysim.workloads.datasets.files.dates import (
    FORMS,
    ISO,
    First,
    Readings,
    chosen,
    firsts_of,
    readings_of,
    shown_forms,
)
from raysim.workloads.datasets.files.source import (
    Given,
    as_array,
    as_words,
    is_list,
    is_missing,
    is_number,
    is_text,
    naming,
    shown,
)

EXACT = 2**53
"""From this size on, several integers share one float64 number."""
NUMBER = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity)$"
"""Words that Arrow reads as numbers."""
COMMAS = r"^[+-]?(\d+([.,]\d+)?|\d{1,3}([.,]\d{3})+([.,]\d+)?)$"
"""Numbers as words, perhaps with a comma for the decimals or for the thousands."""
DECIMAL = r"[+-]?\d+,\d+"
"""Numbers as words with a comma, perhaps for the decimals."""
PADDED = r"^[+-]?0\d"
"""Words that are numbers with zeros in front: several of them may be one number."""
SIGNS = r"[%\x{2030}\p{Sc}]|(?i)\b(usd|eur|gbp|chf|jpy|cny|inr)\b"
"""Signs of percent and currency in numbers."""
BLANKS = r"^[\s\x{a0}\x{202f}]+|[\s\x{a0}\x{202f}]+$"
GROUPED = r"^\(?[+-]?\d{1,3}([.,'_ \x{2019}\x{a0}\x{202f}]\d{3})+([.,]\d+)?\)?$"
"""Numbers with separated thousands."""

Place = Callable[[int], str]
"""Returns the place of a value of a batch in the files: `row 3`."""


@dataclass(frozen=True)
class Seen:
    """A value of a column.

    Attributes:
        word: The value.
        place: Its place: `row 3`.
    """

    word: Any
    place: str


@dataclass
class Kind:
    """Kind of a column's values, after all batches have been seen.

    Attributes:
        names: Columns that settings name already.
        feature: Whether the column is one of inputs, which may do without it.
        missing: Number of missing values.
        lack: Place of the first missing value.
        present: Number of other values.
        near: Number of values that are numbers, some perhaps with signs or separators.
        odd: First value that is not a number as it stands; None if all are numbers.
        strange: First value that is not a number without signs and separators either.
        whole: Whether all values are whole numbers of int64.
        rounded: Whether a number is so large that float64 may hold a neighbour of it.
        padded: Whether a number is a word with zeros in front.
        readings: Forms that read all values as dates; empty if a value is not a date.
        either: First word of a column of dates that gives different dates in different forms.
        typed: Whether all values are stored as numbers, not as words.
        lists: Whether it holds lists; all may be missing.
        arrays: Shape and type of the arrays that it holds; None if it holds none.
    """

    names: Given
    feature: bool = True
    missing: int = 0
    lack: str = ""
    present: int = 0
    near: int = 0
    odd: Seen | None = None
    strange: Seen | None = None
    whole: bool = True
    rounded: bool = False
    padded: bool = False
    readings: Readings = FORMS
    either: Seen | None = None
    typed: bool = True
    lists: bool = False
    arrays: tuple[tuple[int, ...], np.dtype[Any]] | None = None

    def count(self, values: pa.Array, place: Place) -> pa.Array:
        """Count the values and the missing values of a batch; return which there are [n]."""
        missing = is_missing(values)
        if count := pc.sum(missing).as_py():
            self.lack = self.lack or place(pc.index(missing, True).as_py())
            self.missing += count
        self.present += len(values) - (count or 0)
        return pc.invert(missing)

    def see(self, values: pa.Array, column: pa.Field, place: Place) -> None:
        """Take in a batch of a column.

        Raises:
            DataError: its values are of no kind that can be an input.
        """
        there = self.count(values, place)
        if is_list(values.type):
            self.lists = True
            if len(lists := values.filter(there)):
                array = as_array(lists, column)
                self.see_arrays(array.shape[1:], array.dtype, column.name)
        elif is_text(values.type) or is_number(values.type):
            self.typed = self.typed and _is_typed(values)
            self._see_numbers(values, there, place)
        elif not pa.types.is_null(values.type):
            instead = f"; {naming('leave_out', column.name, self.names)} goes on without it"
            if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
                setting = naming("dates", column.name, self.names)
                instead = (
                    f"; {setting} makes month, weekday and hour of it{instead.replace(';', ',')}"
                )
            raise DataError(
                f"column {shown(column.name)} holds values of type {values.type}; must be numbers,"
                f" words or lists of numbers{instead if self.feature else ''}"
            )

    def see_clients(self, values: pa.Array, place: Place) -> None:
        """Take in a batch of a column of natural clients."""
        self.count(values, place)
        self.typed = self.typed and _is_typed(values)
        self.whole = self.whole and self.typed and as_integers(values) is not None

    def see_dates(self, values: pa.Array, column: pa.Field, place: Place) -> None:
        """Take in a batch of a column of dates.

        Raises:
            DataError: a value is none.
        """
        self.count(values, place)
        before, of_text = self.readings, is_text(values.type)
        values = as_words(values) if of_text else values
        texts = pc.unique(values) if of_text else values
        self.readings = readings_of(texts, before)
        if not self.readings:
            at = _first_that(lambda n: not readings_of(texts[:n], before), len(texts))
            as_those = "as 2024-02-29 13:30, 29.2.2024 or Feb 29, 2024"
            if (before := readings_of(texts[:at], before)) != FORMS:
                as_those = f"of the form {shown_forms(before)}, as those before it"
            row = pc.index(values, texts[at]).as_py() if of_text else at
            raise DataError(
                f"column {shown(column.name)}: {shown(texts[at].as_py())} in {place(row)} is no"
                f" date {as_those}; dataset.dates makes month, weekday and hour of dates"
            )
        if self.either is None and len(self.readings) > 1:
            forms = (tuple(chain(*self.readings)),)
            word = texts[_first_that(lambda n: len(readings_of(texts[:n], forms)) > 1, len(texts))]
            self.either = Seen(word.as_py(), place(pc.index(values, word).as_py()))

    def date_form(self, name: str, first: First | None) -> str:
        """Return the form of the column's dates.

        Args:
            name: The column's name.
            first: What comes first in dates that have several forms.

        Raises:
            DataError: day, month and year cannot be told apart.
        """
        form = chosen(self.readings, first)
        if self.either and form is None:
            raise DataError(
                f"column {shown(name)}: its dates, {shown(self.either.word)} in {self.either.place}"
                f" say, are {shown_forms(self.readings)}; {self._of_firsts} says which"
            )
        return form or ISO

    @property
    def _of_firsts(self) -> str:
        """Setting that says which of several forms the dates have."""
        return f"dataset.dates_first={' or '.join(firsts_of(self.readings))}"

    def advice_on_dates(self, name: str) -> str:
        """Return advice for a column of words that are all dates; empty for other columns."""
        makes = f"{naming('dates', name, self.names)} makes month, weekday and hour of it"
        if len(self.readings) > 1:
            told = shown_forms(self.readings)
            return f"it may hold dates, {told}: {makes}, and {self._of_firsts} says which"
        return makes if self.readings else ""

    @property
    def numbers(self) -> bool:
        """True if all values are numbers."""
        return self.odd is None

    @property
    def commas(self) -> bool:
        """True if all values are numbers once commas are allowed in them."""
        return self.odd is not None and self.strange is None and "," in self.odd.word

    @property
    def clients(self) -> pa.DataType:
        """Type that keeps natural clients apart, whatever types their numbers are stored in."""
        return pa.int64() if self.typed and self.whole else pa.string()

    @property
    def labels(self) -> pa.DataType:
        """Type that keeps all labels of the column apart."""
        if not self.numbers or self.padded or (self.rounded and not self.whole):
            return pa.string()
        return pa.int64() if self.whole else pa.float64()

    def check_words(self, name: str) -> None:
        """Check that the column is one of words, if it is not one of numbers.

        Raises:
            DataError: most values are numbers, as they stand or without signs.
        """
        if self.odd is None or 2 * self.near <= self.present:
            return
        words = f"{naming('categories', name, self.names)} takes them for words"
        instead = f"{words}, {naming('leave_out', name, self.names)} goes on without them"
        if self.strange is not None:
            raise DataError(
                f"column {shown(name)}: {self.near} of its {self.present} values are numbers,"
                f" {shown(self.strange.word)} in {self.strange.place} is not; leave it empty, to be"
                f" a missing value; {instead}"
            )
        held, write = "signs or separated thousands", "write 1.5 and 1500"
        if re.fullmatch(DECIMAL, self.odd.word):
            held = "a comma"
            write += ", or separate the columns of a .csv by semicolons where 1,5 is 1.5"
        raise DataError(
            f"column {shown(name)}: {shown(self.odd.word)} in {self.odd.place} is a number with"
            f" {held}; {write}; {instead}"
        )

    def _see_numbers(self, values: pa.Array, there: pa.Array, place: Place) -> None:
        """Take in a batch of numbers, or of words that may all be numbers."""
        numbers = as_numbers(values)
        if numbers is None:
            self.whole = False
            self._see_words(as_words(values), there, place)
            return
        self.near += pc.sum(there).as_py() or 0
        self.readings = () if pc.any(there).as_py() else self.readings
        self.whole = self.whole and as_integers(values) is not None
        large = pc.any(pc.greater_equal(pc.abs(numbers), EXACT)).as_py()
        self.rounded = self.rounded or bool(large)
        if is_text(values.type):
            padded = pc.any(pc.match_substring_regex(as_words(values), PADDED)).as_py()
            self.padded = self.padded or bool(padded)

    def _see_words(self, words: pa.Array, there: pa.Array, place: Place) -> None:
        coded = words.dictionary_encode()  # so that each word is looked at once
        plain, near = (flags.take(coded.indices) for flags in _numbers_among(coded.dictionary))
        plain, near = pc.fill_null(plain, False), pc.fill_null(near, False)
        self.readings = readings_of(coded.dictionary, self.readings)
        self.near += pc.sum(pc.and_(near, there)).as_py() or 0
        self.odd = self.odd or _first(words, pc.and_not(there, plain), place)
        self.strange = self.strange or _first(words, pc.and_not(there, near), place)

    def see_arrays(self, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
        """Take in the shape and the type of a column's arrays.

        Raises:
            DataError: arrays before had another shape, or they have no values.
        """
        if 0 in shape:
            raise DataError(f"column {shown(name)}: its lists are empty; must hold numbers")
        if self.arrays and self.arrays[0] != shape:
            raise DataError(
                f"column {shown(name)}: arrays have shape {[*shape]}, those before"
                f" {[*self.arrays[0]]}; must be of one shape"
            )
        self.arrays = (shape, np.result_type(dtype, self.arrays[1]) if self.arrays else dtype)


def _numbers_among(words: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return which words [n] are numbers, and which are without signs and separators."""
    plain = pc.match_substring_regex(words, NUMBER)
    bare = pc.replace_substring_regex(words, SIGNS, "")
    bare = pc.replace_substring_regex(bare, BLANKS, "")
    near = plain
    for pattern in (NUMBER, COMMAS, GROUPED):
        near = pc.or_(near, pc.match_substring_regex(bare, pattern))
    return plain, near


def _first(words: pa.Array, chosen: pa.Array, place: Place) -> Seen | None:
    """Return the first of the chosen words; None if there is none."""
    at = pc.index(chosen, True).as_py()
    return None if at < 0 else Seen(words[at].as_py(), place(at))


def _first_that(holds: Callable[[int], bool], most: int) -> int:
    """Return the least index such that a property holds for the values up to it."""
    return bisect_left(range(1, most), True, key=holds)


def as_numbers(values: pa.Array) -> pa.Array | None:
    """Return the values of a column as the nearest float64; None if they are words."""
    try:
        words_or_numbers = as_words(values) if is_text(values.type) else values
        return pc.cast(words_or_numbers, pa.float64(), safe=False)
    except pa.ArrowInvalid:
        return None


def as_integers(values: pa.Array) -> pa.Array | None:
    """Return the values of a column as int64; None if one is no such number."""
    try:
        return pc.cast(as_words(values) if is_text(values.type) else values, pa.int64())
    except pa.ArrowInvalid:
        return None


def _is_typed(values: pa.Array) -> bool:
    of_numbers = is_number(values.type) and not pa.types.is_boolean(values.type)
    return of_numbers or pa.types.is_null(values.type)
