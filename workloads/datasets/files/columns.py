"""Columns of a table as inputs: kinds of columns, training figures, encoding.

Numbers are inputs as they are, words a 0 or 1 per word (one-hot), arrays as they are where they are
the only feature, else flattened. Means, deviations and words are those of the training samples.

Legend: n rows of a batch, F features.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.core.errors import DataError
from raysim.workloads.datasets.files.source import (
    Array,
    as_array,
    is_list,
    is_missing,
    is_number,
    is_text,
    leaving_out,
    shown,
)

MOST_WORDS = 1_000
"""Most different words of a feature."""
EQUAL = 4
"""Units in the last place up to which numbers differ by rounding alone."""
EXACT = 2**53
"""Size from which on float64 holds one number for several integers."""
LARGEST = np.finfo(np.float32).max
"""Largest number of an input or a target."""
COMMAS = r"^[+-]?(\d+([.,]\d+)?|\d{1,3}([.,]\d{3})+([.,]\d+)?)$"
"""Numbers as words, perhaps with a comma for the decimals or for the thousands."""
PADDED = r"^[+-]?0\d"
"""Words that are numbers with zeros in front: several of them may be one number."""
CHANNELS = (1, 3, 4)
"""Channels of an image."""


@dataclass
class Kind:
    """Kind of a column's values, after all batches have been seen.

    Attributes:
        rows: Number of rows.
        missing: Number of missing values, and the number of the row of the first one.
        numbers: Whether all values are numbers.
        whole: Whether all values are whole numbers of int64.
        rounded: Whether a number is so large that float64 may hold a neighbour of it.
        padded: Whether a number is a word with zeros in front.
        commas: Whether all values are numbers if commas are allowed in them.
        typed: Whether all values are stored as numbers, not as words.
        lists: Whether it holds lists, of which all may be missing.
        arrays: Shape and type of the arrays that it holds; None if it holds none.
    """

    rows: int = 0
    missing: tuple[int, int] = (0, 0)
    numbers: bool = True
    whole: bool = True
    rounded: bool = False
    padded: bool = False
    commas: bool = True
    typed: bool = True
    lists: bool = False
    arrays: tuple[tuple[int, ...], np.dtype[Any]] | None = None

    def count(self, values: pa.Array) -> None:
        """Count the rows and the missing values of a batch of a column."""
        missing = is_missing(values)
        if count := pc.sum(missing).as_py():
            first = self.rows + pc.index(missing, True).as_py()
            first = self.missing[1] if self.missing[0] else first
            self.missing = (self.missing[0] + count, first)
        self.rows += len(values)

    def see(self, values: pa.Array, column: pa.Field) -> None:
        """Take in a batch of a column.

        Raises:
            DataError: its values are of no kind that can be an input.
        """
        self.count(values)
        if is_list(values.type):
            self.lists = True
            there = values.filter(pc.invert(is_missing(values)))
            if len(there):
                found = as_array(there, column)
                self.see_arrays(found.shape[1:], found.dtype, column.name)
        elif is_text(values.type) or is_number(values.type):
            self.typed = self.typed and _is_typed(values)
            self.see_numbers(values)
        elif not pa.types.is_null(values.type):
            raise DataError(
                f"column {shown(column.name)} holds values of type {values.type}; must be numbers,"
                f" words or lists of numbers; {leaving_out(column.name)} goes on without it"
            )

    def see_clients(self, values: pa.Array) -> None:
        """Take in a batch of a column of natural clients."""
        self.count(values)
        self.typed = self.typed and _is_typed(values)
        self.whole = self.whole and self.typed and as_integers(values) is not None

    @property
    def clients(self) -> pa.DataType:
        """Type that keeps natural clients apart, whatever types their numbers are stored in."""
        return pa.int64() if self.typed and self.whole else pa.string()

    def see_numbers(self, values: pa.Array) -> None:
        """Take in a batch of numbers, or of words that may all be numbers."""
        if not self.commas:
            return
        numbers = as_numbers(values)
        if numbers is None:
            self.numbers = self.whole = False
            self.commas = bool(pc.all(pc.match_substring_regex(as_words(values), COMMAS)).as_py())
            return
        self.whole = self.whole and as_integers(values) is not None
        large = pc.any(pc.greater_equal(pc.abs(numbers), EXACT)).as_py()
        self.rounded = self.rounded or bool(large)
        if is_text(values.type):
            padded = pc.any(pc.match_substring_regex(as_words(values), PADDED)).as_py()
            self.padded = self.padded or bool(padded)

    @property
    def labels(self) -> pa.DataType:
        """Type that keeps all labels of the column apart."""
        if not self.numbers or self.padded or (self.rounded and not self.whole):
            return pa.string()
        return pa.int64() if self.whole else pa.float64()

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


def as_numbers(values: pa.Array) -> pa.Array | None:
    """Return the values of a column as the nearest float64; None if they are words."""
    try:
        given = as_words(values) if is_text(values.type) else values
        return pc.cast(given, pa.float64(), safe=False)
    except pa.ArrowInvalid:
        return None


def without_sign_of_zero(numbers: pa.Array) -> pa.Array:
    """Return floating-point numbers with 0 for -0.0, which is the same number."""
    if pa.types.is_float16(numbers.type):  # of which Arrow compares none
        numbers = pc.cast(numbers, pa.float32())
    return pc.if_else(pc.equal(numbers, 0), pa.scalar(0, numbers.type), numbers)


def as_integers(values: pa.Array) -> pa.Array | None:
    """Return the values of a column as int64; None if one is no such number."""
    try:
        return pc.cast(as_words(values) if is_text(values.type) else values, pa.int64())
    except pa.ArrowInvalid:
        return None


def _is_typed(values: pa.Array) -> bool:
    of_numbers = is_number(values.type) and not pa.types.is_boolean(values.type)
    return of_numbers or pa.types.is_null(values.type)


def as_words(values: pa.Array) -> pa.Array:
    """Return the values of a column as words without outer blanks; -0.0 as 0."""
    if pa.types.is_floating(values.type):
        values = without_sign_of_zero(values)
    return pc.utf8_trim_whitespace(pc.cast(values, pa.string()))


@dataclass
class Figures:
    """Means, deviations and bounds [F] of numbers [n, F], merged from batches, in float64.

    Source: Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances, COMPSTAT 1982.
    """

    count: Array = field(default_factory=lambda: np.zeros(1))
    mean: Array = field(default_factory=lambda: np.zeros(1))
    squares: Array = field(default_factory=lambda: np.zeros(1))
    least: Array = field(default_factory=lambda: np.full(1, np.inf))
    largest: Array = field(default_factory=lambda: np.full(1, -np.inf))

    def see(self, values: Array) -> None:
        """Take in numbers [n, F]; those that are missing (NaN) are left out."""
        there = ~np.isnan(values)
        count = there.sum(axis=0)
        given = np.ascontiguousarray(np.where(there, values, 0.0).T)  # summed in pairs, by halves
        mean = given.sum(axis=1) / np.maximum(count, 1)
        squares = np.square(np.where(there, values - mean, 0.0)).sum(axis=0)
        total, shift = self.count + count, mean - self.mean
        self.squares = self.squares + squares + shift**2 * self.count * count / np.maximum(total, 1)
        self.mean = self.mean + shift * count / np.maximum(total, 1)
        self.count = total
        least = np.where(there, values, np.inf).min(axis=0, initial=np.inf)
        largest = np.where(there, values, -np.inf).max(axis=0, initial=-np.inf)
        self.least = np.minimum(self.least, least)
        self.largest = np.maximum(self.largest, largest)

    @property
    def deviation(self) -> Array:
        """Standard deviations [F] over all numbers; 1 where these are equal but for rounding."""
        deviation: Array = np.sqrt(self.squares / np.maximum(self.count, 1))
        size = np.where(self.count > 0, np.maximum(-self.least, self.largest), 0.0)
        differ = self.largest - self.least > EQUAL * np.spacing(np.abs(size))
        return np.where(differ & (deviation > 0), deviation, 1.0)

    def standardised(self, values: Array) -> Array:
        """Return numbers [n, F] less their means, by their deviations."""
        standardised: Array = (values - self.mean) / self.deviation
        return standardised


def check_finite(values: Array, name: str) -> None:
    """Check that numbers of a column are finite in float32.

    Raises:
        DataError: one is not.
    """
    finite = np.abs(values) <= LARGEST
    if not finite.all():
        raise DataError(
            f"column {shown(name)}: holds {values[~finite][0]:g}; must be finite, and at most"
            f" {LARGEST:.2g} in size, as float32 is"
        )


def finite_numbers(values: pa.Array, name: str) -> Array:
    """Return numbers [n] of a column, NaN where missing.

    Raises:
        DataError: a value is infinite in float32.
    """
    numbers: Array = as_numbers(values).to_numpy(zero_copy_only=False)  # type: ignore[union-attr]
    check_finite(numbers[~np.isnan(numbers)], name)
    return numbers


def as_float32(values: Array, name: str) -> Array:
    """Return numbers of a column in float32.

    Raises:
        DataError: a value is not a finite number of float32.
    """
    check_finite(values, name)
    return values.astype(np.float32, copy=False)


@dataclass
class Number:
    """A column of numbers as an input [n, 1], filled and standardised as asked."""

    name: str
    fill: bool
    standardise: bool
    figures: Figures = field(default_factory=Figures)

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of training samples."""
        self.figures.see(finite_numbers(batch[self.name], self.name)[:, None])

    def encode(self, batch: pa.RecordBatch) -> Array:
        """Return the inputs of a batch, in float32."""
        numbers = finite_numbers(batch[self.name], self.name)[:, None]
        numbers = np.where(np.isnan(numbers), self.figures.mean if self.fill else 0.0, numbers)
        scaled = self.figures.standardised(numbers) if self.standardise else numbers
        return as_float32(scaled, self.name)

    @property
    def size(self) -> float:
        """Size of the largest input; 0 of inputs that are standardised."""
        sizes = np.maximum(-self.figures.least, self.figures.largest)
        return 0.0 if self.standardise else max(float(sizes.max()), 0.0)


@dataclass
class Words:
    """A column of words as inputs [n, words]: 1 for its word, 0 for others.

    A word that no training sample has, or a missing one, is 0 everywhere.
    """

    name: str
    seen: set[str] = field(default_factory=set)
    size: ClassVar[float] = 1.0
    """Size of the largest input."""

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of training samples.

        Raises:
            DataError: the column has too many different words.
        """
        self.seen |= {
            word for word in pc.unique(as_words(batch[self.name])).to_pylist() if word is not None
        }
        if len(self.seen) > MOST_WORDS:
            raise DataError(
                f"column {shown(self.name)} has more than {MOST_WORDS} different words;"
                f" {leaving_out(self.name)} goes on without it"
            )

    def encode(self, batch: pa.RecordBatch) -> Array:
        """Return the inputs of a batch, in float32."""
        known = pa.array(sorted(self.seen), pa.string())
        at = pc.fill_null(pc.index_in(as_words(batch[self.name]), known), -1).to_numpy(
            zero_copy_only=False
        )
        found: Array = at[:, None] == np.arange(len(known))
        return found.astype(np.float32)


@dataclass
class Arrays:
    """A column of arrays as inputs [n, ...]: numbers, bytes, or integers of a category.

    Integers are numbers, in float32, but for bytes, which are images, and those that are to stay
    categories, for an embedding. Images become channels first; other arrays keep their shape.

    Bytes of two dimensions are images of one channel, those of three with 1, 3 or 4 values along
    the last dimension, and another number along the first, images with the channels last.
    """

    name: str
    dtype: np.dtype[Any]
    standardise: bool
    categories: bool = False
    figures: Figures = field(default_factory=Figures)
    size: float = 0.0
    """Size of the largest number among inputs that were encoded and not standardised."""
    dimensions: int = 0

    def _values(self, batch: pa.RecordBatch) -> Array:
        x = as_array(batch[self.name], batch.schema.field(self.name))
        if x.dtype.kind == "f":
            check_finite(x, self.name)
        return x

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of training samples.

        Raises:
            DataError: arrays of several dimensions are to be standardised.
        """
        if self.standardise:
            x = self._values(batch)
            if x.ndim > 2:
                raise DataError(
                    f"dataset.standardise=true: column {shown(self.name)} holds arrays of shape"
                    f" {[*x.shape[1:]]}; only numbers and lists of them are standardised"
                )
            self.figures.see(x.astype(np.float64))

    def encode(self, batch: pa.RecordBatch) -> Array:
        """Return the inputs of a batch: bytes, int64 for categories, else float32.

        Raises:
            DataError: a value is not finite.
        """
        x = self._values(batch)
        if self.standardise:
            return as_float32(self.figures.standardised(x), self.name)
        if self.categories:
            return x.astype(np.int64, copy=False)
        if self.dtype != np.uint8:
            numbers = x.astype(np.float32, copy=False)
            self.size = max(self.size, float(np.abs(numbers).max(initial=0)))
            self.dimensions = x.ndim - 1
            return numbers
        if x.ndim == 3:
            x = x[:, None]
        elif x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
            x = np.moveaxis(x, 3, 1)
        return x


Feature = Number | Words | Arrays


def inputs(features: Iterable[Feature], batch: pa.RecordBatch) -> Array:
    """Return the inputs of a batch: one feature's [n, ...], or several side by side [n, F].

    Bytes stay bytes where they are alone; they are scaled to [0, 1] when they are decoded.
    """
    encoded = [each.encode(batch) for each in features]
    if len(encoded) == 1:
        return encoded[0]
    scaled = [x.astype(np.float32) / 255 if x.dtype == np.uint8 else x for x in encoded]
    flat = [x.reshape(len(x), -1) for x in scaled]
    return np.concatenate(flat, axis=1, dtype=np.float32)
