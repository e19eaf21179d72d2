"""Columns of text as inputs, and the tokens that follow as targets.

Texts are tokenised once, into a work file next to the prepared one; the other columns are read from
the files as ever.

Legend: n rows of a batch, T tokens of an input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.api.rules import padded_length
from raysim.api.scoring import IGNORED, NO_TOKEN
from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.workloads.datasets.files.choices import MARKS
from raysim.workloads.datasets.files.kinds import as_numbers
from raysim.workloads.datasets.files.source import (
    Batches,
    Source,
    as_words,
    is_missing,
    is_number,
    is_text,
    shown,
    side_by_side,
)
from raysim.workloads.datasets.text import Ids, Tokeniser, padded

IDS = pa.list_(pa.int32())


@dataclass
class Text:
    """A column of text as inputs [n, T]: the numbers of its tokens, then NO_TOKEN.

    Attributes:
        name: The column.
        tokeniser: What makes tokens of it.
        length: Most tokens of an input.
        longest: Most tokens of an input among the training and test samples.
        count: Number of texts.
        cut: Number of them that were cut.
        numbers: Whether all texts are numbers.
        held: Columns of the source that is read in which there is a text.
        limit: Why inputs have no more tokens, for a line on new texts.
    """

    name: str
    tokeniser: Tokeniser
    length: int
    longest: int = 0
    count: int = 0
    cut: int = 0
    numbers: bool = True
    held: set[str] = field(default_factory=set)
    limit: str = "dataset.length of the run"
    size: ClassVar[float] = 0.0
    """Size of the largest input: token numbers are no sizes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample's inputs."""
        return (padded_length(np.array([self.longest])),)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of text."""
        return (self.name,)

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings that name the columns."""
        return ("text",)

    @property
    def schema(self) -> pa.Schema:
        """Columns of tokens; that of answers has where each begins."""
        return pa.schema(zip(self.columns, (IDS, pa.int32()), strict=False))

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of training samples, of which nothing must be known."""

    def tokenised(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the column of a batch as lists of numbers of tokens.

        Raises:
            DataError: the column holds something else than text.
        """
        (column,) = self._texts(batch)
        self.numbers = self.numbers and as_numbers(column) is not None
        texts = column.to_pylist()
        there = [row for row, text in enumerate(texts) if text is not None]
        ids, cut = self.tokeniser.numbers([texts[row] for row in there], self.length)
        self.count += len(ids)
        self.cut += sum(cut)
        self.longest = max([self.longest, *map(len, ids)])
        of_row = dict(zip(there, ids, strict=True))
        lists = pa.array([of_row.get(row) for row in range(len(texts))], IDS)
        return pa.record_batch([lists], schema=self.schema)

    def _texts(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the texts of a batch by column, None for no text; note which columns have any."""
        texts = [texts_of(batch[name], name) for name in self.columns]
        pairs = zip(self.columns, texts, strict=True)
        self.held |= {name for name, column in pairs if column.null_count < len(column)}
        return texts

    def encode(self, batch: pa.RecordBatch) -> Array:
        """Return the inputs [n, T] of a batch of texts, or of their tokens, in int32."""
        lists = batch[self.name]
        lists = lists if lists.type == IDS else self.tokenised(batch)[self.name]
        return _array(lists, *self.shape)

    def encode_new(self, batch: pa.RecordBatch) -> tuple[Array, Array]:
        """Return the inputs [m, T] of new texts, and which rows [n] fit: all, as they are cut."""
        return self.encode(batch), np.ones(len(batch), bool)

    def notes_of_new(self) -> list[str]:
        """Return a line on new texts that were cut, if there are any."""
        if not self.cut:
            return []
        return [
            f"{self.cut} of {self.count} texts of {shown(self.name)} are cut, at {self.length}"
            f" tokens, {self.limit}"
        ]

    def notes(self) -> list[str]:
        """Return a line on texts that were cut, if there are any."""
        if not self.cut:
            return []
        return [
            f"{self.cut} of {self.count} texts of {shown(self.columns[-1])} are cut, at"
            f" {self.length} tokens; dataset.length=N keeps more"
        ]

    def check_held(self, path: Path) -> None:
        """Check that there was a text in each column of a source that was read.

        Args:
            path: Where the texts came from.

        Raises:
            DataError: all cells of a column are empty.
        """
        for setting, name in zip(self.settings, self.columns, strict=True):
            if name not in self.held:
                raise DataError(
                    f"dataset.{setting}={shown(name)}: has no text: all cells are empty, in {path};"
                    " must hold text"
                )

    def check(self, path: Path, missing: str) -> None:
        """Check that not all texts are numbers.

        Args:
            path: Where they came from.
            missing: What is done about missing values.

        Raises:
            DataError: all are numbers.
        """
        if self.numbers and self.count:
            raise DataError(
                f"dataset.text={shown(self.name)}: holds numbers alone, in {path}; must hold text"
            )


@dataclass
class Language(Text):
    """A column of text, or of prompts with answers, as inputs [n, T] before each next token.

    A text, or a prompt and its answer, is one row of tokens. Inputs are all but the last of them,
    targets all but the first, without those of a prompt.

    Attributes:
        answer: Column of answers; empty where all tokens of a text count.
        rows: Number of rows of the source that is read.
        origin: Returns the file and the row in it, from 0, of a row of that source.
        short: Places of rows without a token to predict: a prompt fills all, or a text has one.
    """

    answer: str = ""
    rows: int = 0
    origin: Callable[[int], tuple[Path, int]] | None = None
    short: list[str] = field(default_factory=list)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of text."""
        return (self.name, self.answer) if self.answer else (self.name,)

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings that name the columns."""
        return ("prompt", "answer") if self.answer else ("text",)

    def tokenised(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return texts of a batch as lists of numbers of tokens, and where answers begin in them.

        Raises:
            DataError: a column holds something else than text, or the chat template fails.
        """
        texts = [column.to_pylist() for column in self._texts(batch)]
        there = [row for row, parts in enumerate(zip(*texts, strict=True)) if None not in parts]
        parts = [[column[row] for row in there] for column in texts]
        pairs = self._pairs(*parts) if self.answer else self._whole(*parts)
        ids: list[Ids | None] = [None] * len(batch)
        starts: list[int | None] = [None] * len(batch)
        for row, (tokens, start) in zip(there, pairs, strict=True):
            if start < len(tokens):
                ids[row], starts[row] = tokens, start
                self.count += 1
                self.longest = max(self.longest, len(tokens) - 1)
            else:
                self.short.append(self._place(self.rows + row))
        self.rows += len(batch)
        columns = [pa.array(ids, IDS), pa.array(starts, pa.int32())]
        return pa.record_batch(columns[: len(self.columns)], schema=self.schema)

    def _place(self, row: int) -> str:
        """Return the place of a row of the source that is read."""
        path, row = self.origin(row) if self.origin else (None, row)
        return f"row {row + 1}" + (f" of {path}" if path else "")

    def _whole(self, texts: list[str]) -> Iterator[tuple[Ids, int]]:
        """Yield the tokens of texts, and the first that counts of each."""
        most = self.length + 1
        for ids, cut in zip(*self.tokeniser.numbers(texts, most), strict=True):
            self.cut += cut
            yield (ids if cut else self.tokeniser.ended(ids)[:most]), 1

    def _pairs(self, prompts: list[str], answers: list[str]) -> Iterator[tuple[Ids, int]]:
        """Yield the tokens of prompts with their answers, and where each answer begins."""
        most, tokeniser = self.length + 1, self.tokeniser
        asked = [tokeniser.asked(prompt) for prompt in prompts]
        replies = map(tokeniser.answered, asked, prompts, answers)
        begins = zip(*tokeniser.numbers(asked, most, special=False), strict=True)
        ends = zip(*tokeniser.numbers([*replies], most, special=False), strict=True)
        for (prompt, fills), (end, cut) in zip(begins, ends, strict=True):
            ids = prompt if fills else [*prompt, *end]
            self.cut += not fills and (cut or len(ids) > most)
            yield ids[:most], len(prompt)

    def encode(self, batch: pa.RecordBatch) -> Array:
        """Return the inputs [n, T] of a batch of tokens, in int32."""
        inputs, following = self._shifted(batch)
        return np.where(following == NO_TOKEN, NO_TOKEN, inputs)

    def encode_new(self, batch: pa.RecordBatch) -> tuple[Array, Array]:
        """Return the inputs [m, T] of new texts, all their tokens, and which rows [n] fit."""
        texts = texts_of(batch[self.name], self.name).to_pylist()
        if self.answer:
            texts = [self.tokeniser.asked(prompt) for prompt in texts]
        ids, cut = self.tokeniser.numbers(texts, self.length, special=not self.answer)
        whole = [row for row, is_cut in zip(ids, cut, strict=True) if not is_cut]
        self.cut += sum(cut)
        self.longest = max([self.longest, *map(len, whole)])
        return _array(pa.array(whole, IDS), *self.shape), ~np.array(cut, bool)

    def notes(self) -> list[str]:
        """Return lines on texts that were cut, and on answers without an end, if there are any."""
        if not self.answer or self.tokeniser.ends:
            return super().notes()
        return [
            *super().notes(),
            f"answers in {shown(self.answer)} have no end, so that the model writes on after its"
            f" answer: {self.tokeniser.name} has no eos_token, nor a chat template with an end",
        ]

    def notes_of_new(self) -> list[str]:
        """Return a line on new texts that are too long, if there are any."""
        if not self.cut:
            return []
        return [
            f"{self.cut} texts of {shown(self.name)} have more than {self.length} tokens,"
            f" {self.limit}, and have no prediction"
        ]

    def targets(self, batch: pa.RecordBatch) -> Array:
        """Return the tokens that follow [n, T] in a batch of tokens; IGNORED where none counts."""
        _, following = self._shifted(batch)
        first = np.ones(len(batch), np.int64)
        if self.answer:
            first = batch[self.answer].to_numpy(zero_copy_only=False)
        counts = np.arange(1, following.shape[1] + 1) >= first[:, None]
        return np.where(counts & (following != NO_TOKEN), following, IGNORED).astype(np.int64)

    def _shifted(self, batch: pa.RecordBatch) -> tuple[Array, Array]:
        """Return tokens [n, T] of a batch, and those that follow them [n, T]."""
        ids = _array(batch[self.name], self.shape[0] + 1)
        return ids[:, :-1], ids[:, 1:]

    def check(self, path: Path, missing: str) -> None:
        """Check that the texts have a token to predict.

        Args:
            path: Where they came from.
            missing: What is done about missing values.

        Raises:
            DataError: some have none, and are not to be left out.
        """
        if not self.short or (self.count and missing != "refuse"):
            return
        where = f"dataset.{self.settings[0]}={shown(self.name)}: the text in {self.short[0]}"
        advice = ["dataset.missing=drop leaves them out"] if self.count else []
        why = "has fewer than two tokens, so that there is none to predict"
        if self.answer:
            why = f"fills dataset.length={self.length}"
            advice.insert(0, "a larger length keeps them")
        told = "; ".join([f"{why}, as {len(self.short)} do", ", ".join(advice)])
        raise DataError(f"{where} {told.removesuffix('; ')}")

    def left_out(self) -> list[str]:
        """Return a line on rows without a token to predict, if there are any."""
        if not self.short:
            return []
        count, name = len(self.short), shown(self.name)
        if self.answer:
            return [
                f"{count} prompts of {name} fill dataset.length={self.length}, which leaves no room"
                f" for an answer, and are left out, {self.short[0]} first; dataset.length=N keeps"
                " them"
            ]
        return [
            f"{count} texts of {name} have fewer than two tokens, so that there is none to predict,"
            " and are left out"
        ]


@dataclass
class Following:
    """Targets [n, T] of a language model: at each position the token that follows.

    Attributes:
        name: The column that has them.
        text: The column of inputs.
    """

    name: str
    text: Language

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of training samples, of which nothing must be known."""

    def notes(self) -> list[str]:
        """Return no lines."""
        return []

    def check(self) -> None:
        """Accept any training samples."""

    def encode(self, batch: pa.RecordBatch) -> Array:
        """Return the targets of a batch, followed by the marks of questions if it has any."""
        targets = self.text.targets(batch)
        marks = [batch[n].to_numpy()[:, None] for n in MARKS if n in batch.schema.names]
        return np.concatenate([targets, *marks], axis=1)


def texts_of(values: pa.Array, name: str) -> pa.Array:
    """Return the values of a column as texts; empty ones as missing, and numbers that are none.

    A word such as "NA" or "nan" is a text like others.

    Raises:
        DataError: the column holds something else.
    """
    if not (is_text(values.type) or is_number(values.type) or pa.types.is_null(values.type)):
        kind = shown(str(values.type))
        raise DataError(f"column {shown(name)}: holds values of type {kind}; must hold text")
    texts = pc.cast(values, pa.string())
    missing = values.is_null() if is_text(values.type) else is_missing(values)
    none = pc.or_(pc.equal(as_words(texts), ""), missing)
    return pc.if_else(none, pa.scalar(None, pa.string()), texts)


def _array(lists: pa.Array, width: int) -> Array:
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return padded(lists.flatten().to_numpy(), lengths, width)


def with_tokens(source: Source, text: Text, path: Path) -> Source:
    """Return a source with tokens in place of texts.

    Args:
        source: The source, of which the columns of text are read once.
        text: The columns; it counts the texts.
        path: Work file of the tokens, which is written.

    Raises:
        DataError: a column holds no text.
    """
    text.held, rows = set(), 0
    if isinstance(text, Language):
        text.rows, text.origin = 0, source.file_of
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, text.schema) as writer:
        for batch in source.read(text.columns):
            writer.write_batch(text.tokenised(batch))
            rows += len(batch)
    if rows:
        text.check_held(source.path)

    def read(names: tuple[str, ...]) -> Batches:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        start = 0
        for batch in source.read(names):
            tokens = table.slice(start, len(batch)).combine_chunks().to_batches()
            start += len(batch)
            parts = {n: tokens[0] if n in table.column_names else batch for n in names}
            yield side_by_side(parts) if tokens else batch.slice(0, 0)

    return replace(source, read=read)
