"""Columns of a table as targets and natural clients.

Legend: n rows of a batch, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.workloads.datasets.files.columns import Figures, as_float32, finite_numbers
from raysim.workloads.datasets.files.kinds import as_integers, as_numbers
from raysim.workloads.datasets.files.source import (
    as_array,
    as_words,
    is_list,
    shown,
    without_sign_of_zero,
)

MOST_CLASSES = 100_000


@dataclass
class Classes:
    """A target column as class numbers [n]: ranks of the training samples' labels of a type."""

    name: str
    type: pa.DataType
    seen: set[Any] = field(default_factory=set)

    @property
    def labels(self) -> list[str]:
        """Labels by class number [C], whole numbers without a point."""
        return [*map(self._shown, sorted(self.seen))]

    @staticmethod
    def _shown(label: Any) -> str:
        return str(int(label) if isinstance(label, float) and label.is_integer() else label)

    def _values(self, values: pa.Array) -> pa.Array:
        if pa.types.is_string(self.type):
            return as_words(values)
        if pa.types.is_integer(self.type):
            return as_integers(values)
        return without_sign_of_zero(as_numbers(values))

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of training samples."""
        self.seen |= {*pc.unique(self._values(batch[self.name])).to_pylist()}
        if len(self.seen) > MOST_CLASSES:
            raise DataError(
                f"dataset.target={shown(self.name)}: has more than {MOST_CLASSES} different values;"
                " classes must be fewer; dataset.task=regression takes numbers"
            )

    def notes(self) -> list[str]:
        """Return no lines."""
        return []

    def check(self) -> None:
        """Check that there are two classes at least.

        Raises:
            DataError: there is one.
        """
        if len(self.seen) < 2:
            raise DataError(
                f"dataset.target={shown(self.name)}: all training samples have the label"
                f" {shown(self.labels[0])}; a classification needs two classes"
            )

    def encode(self, batch: pa.RecordBatch) -> Array:
        """Return the class numbers of a batch.

        Raises:
            DataError: a label does not occur in the training samples.
        """
        values = self._values(batch[self.name])
        at = pc.index_in(values, pa.array(sorted(self.seen), values.type))
        if at.null_count:
            label = self._shown(values[pc.index(at.is_null(), True).as_py()].as_py())
            advice = "no client trains on it"
            if not pa.types.is_string(self.type):
                advice += "; dataset.task=regression predicts numbers"
            raise DataError(
                f"dataset.target={shown(self.name)}: the label {shown(label)} is in the test set"
                f" alone; {advice}"
            )
        numbers: Array = at.to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers


@dataclass
class Targets:
    """A target column of numbers, in float32 [n], or of arrays of them [n, ...].

    Attributes:
        name: The column.
        figures: Mean and deviation of all numbers of the training samples.
    """

    name: str
    figures: Figures = field(default_factory=Figures)

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of training samples."""
        self.figures.see(self.encode(batch).astype(np.float64).reshape(-1, 1))

    def notes(self) -> list[str]:
        """Return a line on the unit of the loss."""
        mean, deviation = self.figures.mean[0], self.figures.deviation[0]
        return [
            f"target {shown(self.name)} is standardised for training: less {mean:.4g}, by"
            f" {deviation:.4g}; the loss is of that, MAE and R2 are of the target itself"
        ]

    def check(self) -> None:
        """Accept any training samples."""

    def encode(self, batch: pa.RecordBatch) -> Array:
        """Return the targets of a batch."""
        values = batch[self.name]
        if is_list(values.type):
            return as_float32(as_array(values, batch.schema.field(self.name)), self.name)
        return as_float32(finite_numbers(values, self.name), self.name)


def clients(values: pa.Array, stored: pa.DataType) -> Array:
    """Return natural clients [n] as whole numbers, or words without outer blanks."""
    if pa.types.is_integer(stored):
        numbers: Array = as_integers(values).to_numpy(zero_copy_only=False)  # type: ignore[union-attr]
        return numbers
    return np.array(as_words(values).to_pylist(), dtype=object)
