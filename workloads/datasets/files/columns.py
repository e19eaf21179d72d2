"""Columns of a table as inputs: training figures, encoding.

Numbers are inputs as they are, words a 0 or 1 per word (one-hot), dates three numbers. Arrays keep
their shape if they are the only feature, else they are flattened. Means, deviations and words come
from the training samples.

Legend: n rows of a batch, F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.workloads.datasets.files.dates import ISO, as_dates, shown_forms
from raysim.workloads.datasets.files.kinds import Kind, as_numbers
from raysim.workloads.datasets.files.source import as_array, as_words, naming, shown
from raysim.workloads.datasets.files.texts import Text

MOST_WORDS = 1_000
"""Most different words of a feature."""
FEW_WORDS, NEARLY_ALL = 20, 0.9
"""Number of different words, and part of all words that differ, above which they are texts."""
MOST_TOLD = 8
"""Most columns that are named in a line."""
EQUAL = 4
"""Numbers that differ by at most this many units in the last place differ by rounding alone."""
LARGEST = np.finfo(np.float32).max
"""Largest number of an input or a target."""
CHANNELS = (1, 3, 4)
"""Channels of an image."""


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
        """Take in numbers [n, F]; missing ones (NaN) are left out."""
        there = ~np.isnan(values)
        count = there.sum(axis=0)
        # Summed in pairs, by halves.
        summands = np.ascontiguousarray(np.where(there, values, 0.0).T)
        mean = summands.sum(axis=1) / np.maximum(count, 1)
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
        """Standard deviations [F] over all numbers; 1 where all are equal up to rounding."""
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
    shape: ClassVar[tuple[int, ...]] = (1,)
    """Shape of a sample's inputs."""

    def _numbers(self, batch: pa.RecordBatch) -> Array:
        """Return the numbers [n, F] of a batch, NaN where missing."""
        return finite_numbers(batch[self.name], self.name)[:, None]

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of training samples."""
        self.figures.see(self._numbers(batch))

    def encode(self, batch: pa.RecordBatch) -> Array:
        """Return the inputs of a batch, in float32."""
        numbers = self._numbers(batch)
        numbers = np.where(np.isnan(numbers), self.figures.mean if self.fill else 0.0, numbers)
        scaled = self.figures.standardised(numbers) if self.standardise else numbers
        return as_float32(scaled, self.name)

    @property
    def size(self) -> float:
        """Size of the largest input; 0 of inputs that are standardised."""
        sizes = np.maximum(-self.figures.least, self.figures.largest)
        return 0.0 if self.standardise else max(float(sizes.max()), 0.0)


@dataclass
class Dates(Number):
    """A column of dates as inputs [n, 3]: month from 1, weekday from 0 for Monday, hour."""

    form: str = ISO
    shape = (3,)

    def _numbers(self, batch: pa.RecordBatch) -> Array:
        dates = as_dates(batch[self.name], self.form)
        parts = [pc.month(dates), pc.day_of_week(dates), pc.hour(dates)]
        columns = [pc.cast(part, pa.float64()).to_numpy(zero_copy_only=False) for part in parts]
        return np.stack(columns, axis=1)


@dataclass
class Words:
    """A column of words as inputs [n, words]: 1 for its word, 0 for others.

    A word that no training sample has, or a missing one, is 0 everywhere.

    Attributes:
        name: Name of the column.
        kind: The kind of its values.
        asked: Whether a user has asked for words.
        optional: Whether it is left out if it has too many different words.
        seen: The training samples' words, up to one more than MOST_WORDS.
        count: Number of training samples that have one.
    """

    name: str
    kind: Kind
    asked: bool
    optional: bool = False
    seen: set[str] = field(default_factory=set)
    count: int = 0
    size: ClassVar[float] = 1.0
    """Size of the largest input."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample's inputs."""
        return (len(self.seen),)

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of training samples.

        Raises:
            DataError: the column has too many different words.
        """
        words = pc.drop_null(as_words(batch[self.name]))
        self.count += len(words)
        if len(self.seen) <= MOST_WORDS:
            self.seen |= {*pc.unique(words).to_pylist()}
        if len(self.seen) > MOST_WORDS and not self.optional:
            raise DataError(
                f"column {shown(self.name)} has more than {MOST_WORDS} different words;"
                f" {self._instead}"
            )

    @property
    def is_text(self) -> bool:
        """True if each different word would be an input of few samples, as in free texts."""
        differ = len(self.seen)
        return differ > MOST_WORDS or differ > max(FEW_WORDS, NEARLY_ALL * self.count)

    def check(self) -> None:
        """Check that the words are not free text: each different word would be an input.

        Raises:
            DataError: they are, and the settings do not ask for them.
        """
        if self.is_text and not self.asked:
            raise DataError(
                f"column {shown(self.name)}: {len(self.seen)} of its {self.count} training values"
                f" differ, and each would be an input; {self._instead},"
                f" {naming('categories', self.name, self.kind.names)} takes them for words"
            )

    @property
    def left_out(self) -> str:
        """A line on the column where it is left out."""
        many = f"more than {MOST_WORDS}" if len(self.seen) > MOST_WORDS else len(self.seen)
        advice = self.kind.advice_on_dates(self.name)
        return (
            f"left out {shown(self.name)}: {many} of its {self.count} training values differ"
            f"{advice and f'; {advice}'}"
        )

    @property
    def _instead(self) -> str:
        """Settings that go on without these words."""
        advice = f"{naming('leave_out', self.name, self.kind.names)} goes on without it"
        return ", ".join(filter(None, [self.kind.advice_on_dates(self.name), advice]))

    def encode(self, batch: pa.RecordBatch) -> Array:
        """Return the inputs of a batch, in float32."""
        known = pa.array(sorted(self.seen), pa.string())
        at = pc.fill_null(pc.index_in(as_words(batch[self.name]), known), -1).to_numpy(
            zero_copy_only=False
        )
        matches: Array = at[:, None] == np.arange(len(known))
        return matches.astype(np.float32)


@dataclass
class Arrays:
    """A column of arrays as inputs [n, ...]: numbers, bytes, or integers of a category.

    Bytes are images. Other integers become numbers in float32, unless they stay categories for an
    embedding. Images become channels first; other arrays keep their shape.

    Bytes of two dimensions are images of one channel. Bytes of three dimensions are images with the
    channels last if the last dimension has 1, 3 or 4 values and the first has another number.
    """

    name: str
    dtype: np.dtype[Any]
    standardise: bool
    categories: bool = False
    figures: Figures = field(default_factory=Figures)
    size: float = 0.0
    """Size of the largest number among inputs that were encoded and not standardised."""
    shape: tuple[int, ...] = ()
    """Shape of a sample's inputs, once some have been encoded."""

    def _values(self, batch: pa.RecordBatch) -> Array:
        x = as_array(batch[self.name], batch.schema.field(self.name))
        if x.dtype.kind == "f":
            check_finite(x, self.name)
        return x

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of training samples."""
        if self.standardise:
            x = self._values(batch)
            self.figures.see(x.astype(np.float64).reshape(len(x), -1))

    def encode(self, batch: pa.RecordBatch) -> Array:
        """Return the inputs of a batch: bytes, int64 for categories, else float32.

        Raises:
            DataError: a value is not finite.
        """
        encoded = self._encoded(self._values(batch))
        self.shape = encoded.shape[1:]
        return encoded

    def _encoded(self, x: Array) -> Array:
        if self.standardise:
            flat = self.figures.standardised(x.reshape(len(x), -1))
            return as_float32(flat, self.name).reshape(x.shape)
        if self.categories:
            return x.astype(np.int64, copy=False)
        if self.dtype != np.uint8:
            numbers = x.astype(np.float32, copy=False)
            self.size = max(self.size, float(np.abs(numbers).max(initial=0)))
            return numbers
        if x.ndim == 3:
            x = x[:, None]
        elif x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
            x = np.moveaxis(x, 3, 1)
        return x


Feature = Number | Words | Arrays | Text


def inputs(features: Iterable[Feature], batch: pa.RecordBatch) -> Array:
    """Return the inputs of a batch: one feature's [n, ...], or several side by side [n, F].

    Bytes stay bytes where they are alone; they are scaled to [0, 1] when they are decoded.
    """
    encoded = [feature.encode(batch) for feature in features]
    if len(encoded) == 1:
        return encoded[0]
    scaled = [x.astype(np.float32) / 255 if x.dtype == np.uint8 else x for x in encoded]
    flat = [x.reshape(len(x), -1) for x in scaled]
    return np.concatenate(flat, axis=1, dtype=np.float32)


def read_as(features: Sequence[Feature]) -> list[str]:
    """Return how columns were read, in words, once training samples have been encoded."""
    numbers = [feature.name for feature in features if type(feature) is Number]
    told = [f"numbers {listed(numbers)}"] if numbers else []
    told += [_as_words(feature) for feature in features if isinstance(feature, Words)][:MOST_TOLD]
    dates = [feature for feature in features if isinstance(feature, Dates)]
    for form in dict.fromkeys(date.form for date in dates):
        columns = listed([date.name for date in dates if date.form == form])
        written = f" ({shown_forms(((form,),))})" if form else ""
        told.append(f"month, weekday and hour of {columns}{written}")
    for text in (feature for feature in features if isinstance(feature, Text)):
        told.append(f"text {shown(text.name)} (tokens of {shown(text.tokeniser.name)[1:-1]})")
    return (
        told
        + [_as_arrays(feature) for feature in features if isinstance(feature, Arrays)][:MOST_TOLD]
    )


def _as_words(words: Words) -> str:
    odd, why = words.kind.odd, ""
    if odd and not words.asked:
        why = f", as {shown(odd.word)} in {odd.place} is no number"
        if advice := words.kind.advice_on_dates(words.name):
            why += f"; {advice}"
    many = "input" if len(words.seen) == 1 else "inputs"
    return f"words {shown(words.name)} ({len(words.seen)} {many}{why})"


def _as_arrays(arrays: Arrays) -> str:
    name, shape = shown(arrays.name), "x".join(map(str, arrays.shape))
    if arrays.dtype == np.uint8 and not (arrays.categories or arrays.standardise):
        if len(arrays.shape) != 3:
            return f"bytes {name} ({shape}, scaled to [0, 1])"
        channels, height, width = arrays.shape
        many = "channel" if channels == 1 else "channels"
        return f"images {name} ({height}x{width}, {channels} {many}, scaled to [0, 1])"
    return f"arrays {name} ({shape} {'categories' if arrays.categories else 'numbers'})"


def listed(names: Sequence[str]) -> str:
    """Return names of columns as they stand in a line."""
    more = f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
    return ", ".join(map(shown, names[:MOST_TOLD])) + more
