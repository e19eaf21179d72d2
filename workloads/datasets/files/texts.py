"""Columns of text as inputs, and the tokens that follow as targets.

Texts are tokenised once, into a work file next to the prepared one; the other columns are read from
the files as ever.

Legend: n rows of a batch, T tokens of an input.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.workloads.datasets.files.kinds import as_numbers
from raysim.workloads.datasets.files.source import (
    Batches,
    Source,
    as_words,
    is_number,
    is_text,
    shown,
    side_by_side,
)
from raysim.workloads.datasets.text import Tokeniser, padded, width_of

IDS = pa.list_(pa.int32())


@dataclass
class Text:
    """A column of text as inputs [n, T]: the numbers of its tokens, then NO_TOKEN.

    Attributes:
        name: The column.
        tokeniser: What makes tokens of it.
        length: Most tokens of a text.
        longest: Most tokens of a text among the training and test samples.
        count: Number of texts.
        cut: Number of them that were cut.
        numbers: Whether all texts are numbers.
    """

    name: str
    tokeniser: Tokeniser
    length: int
    longest: int = 0
    count: int = 0
    cut: int = 0
    numbers: bool = True
    size: ClassVar[float] = 0.0
    """Size of the largest input: token numbers are no sizes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample's inputs."""
        return (width_of(self.longest),)

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of training samples, of which nothing must be known."""

    def texts(self, values: pa.Array) -> pa.Array:
        """Return the values of a column as texts, empty ones as missing.

        Raises:
            DataError: the column holds something else.
        """
        if not (is_text(values.type) or is_number(values.type) or pa.types.is_null(values.type)):
            raise DataError(
                f"column {shown(self.name)}: holds values of type {shown(str(values.type))}; must"
                " hold text"
            )
        self.numbers = self.numbers and as_numbers(values) is not None
        texts = pc.cast(values, pa.string())
        return pc.if_else(pc.equal(as_words(texts), ""), pa.scalar(None, pa.string()), texts)

    def tokenised(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the column of a batch as lists of numbers of tokens.

        Raises:
            DataError: the column holds something else than text.
        """
        texts = self.texts(batch[self.name])
        present = pc.drop_null(texts).to_pylist()
        rows, cut = self.tokeniser.numbers(present, self.length)
        self.count += len(rows)
        self.cut += sum(cut)
        self.longest = max([self.longest, *map(len, rows)])
        each = iter(rows)
        lists = [next(each) if valid else None for valid in texts.is_valid().to_pylist()]
        return pa.record_batch([pa.array(lists, IDS)], names=[self.name])

    def encode(self, batch: pa.RecordBatch) -> Array:
        """Return the inputs [n, T] of a batch of texts, or of their tokens, in int32."""
        lists = batch[self.name]
        if lists.type != IDS:
            lists = self.tokenised(batch)[self.name]
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        return padded(lists.flatten().to_numpy(), lengths, *self.shape)

    def notes(self) -> list[str]:
        """Return a line on texts that were cut, if there are any."""
        if not self.cut:
            return []
        return [
            f"{self.cut} of {self.count} texts of {shown(self.name)} have more than {self.length}"
            " tokens, and are cut; dataset.length has more"
        ]

    def check(self, path: Path) -> None:
        """Check that there were texts.

        Raises:
            DataError: all cells are empty, or numbers.
        """
        held = "has no text: all cells are empty" if not self.count else "holds numbers alone"
        if self.numbers or not self.count:
            raise DataError(f"dataset.text={shown(self.name)}: {held}, in {path}; must hold text")


def with_tokens(source: Source, text: Text, path: Path) -> Source:
    """Return a source with the tokens of a column in place of its text.

    Args:
        source: The source, which is read once.
        text: The column; it counts the texts.
        path: Work file of the tokens, which is written.

    Raises:
        DataError: the column holds no text.
    """
    schema = pa.schema([(text.name, IDS)])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in source.read((text.name,)):
            writer.write_batch(text.tokenised(batch))

    def read(names: tuple[str, ...]) -> Batches:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        start = 0
        for batch in source.read(names):
            tokens = table.slice(start, len(batch)).combine_chunks().to_batches()
            start += len(batch)
            parts = {n: tokens[0] if n in table.column_names else batch for n in names}
            yield side_by_side(parts) if tokens else batch.slice(0, 0)

    return replace(source, read=read)
