"""Columns of new data as inputs of a trained network, as the run's own columns were read.

A run keeps how its features became inputs: means, deviations and words of its training samples.
The features that a run was trained with are made again of them, and encode the new rows.

Legend: n rows of a batch, F features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from raysim.api.components import suggest
from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.workloads.datasets.files import pictures, tables
from raysim.workloads.datasets.files.columns import (
    Arrays,
    Dates,
    Feature,
    Figures,
    Number,
    Words,
    inputs,
    listed,
)
from raysim.workloads.datasets.files.dates import as_dates, shown_forms
from raysim.workloads.datasets.files.division import FRACTION
from raysim.workloads.datasets.files.kinds import NUMBER, Kind, as_numbers
from raysim.workloads.datasets.files.source import (
    Source,
    as_words,
    is_list,
    is_missing,
    is_number,
    is_text,
    shown,
)
from raysim.workloads.datasets.files.sources import Reading, find_sources
from raysim.workloads.datasets.files.texts import Language, Text, texts_of
from raysim.workloads.datasets.files.unzipped import ZIP
from raysim.workloads.datasets.text import Tokeniser

Missing = Literal["refuse", "drop", "mean", "zero"]


class _Part(BaseModel):
    """Part of the columns' JSON."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class FiguresOfRun(_Part):
    """Figures of numbers of a run's training samples, in float64."""

    count: list[float]
    mean: list[float]
    squares: list[float]
    least: list[float]
    largest: list[float]

    @classmethod
    def of(cls, figures: Figures) -> Self:
        """Describe figures."""
        return cls(**{name: np.ravel(values).tolist() for name, values in vars(figures).items()})

    @property
    def made(self) -> Figures:
        """The figures."""
        return Figures(**{name: np.array(values) for name, values in self})


class NumbersOfRun(_Part):
    """A column of numbers, or of dates of a form, that a run was trained on."""

    kind: Literal["numbers"] = "numbers"
    name: str
    fill: bool
    standardise: bool
    figures: FiguresOfRun
    form: str | None = None

    @property
    def made(self) -> Number:
        """The feature."""
        given = self.name, self.fill, self.standardise, self.figures.made
        return Number(*given) if self.form is None else Dates(*given, form=self.form)


class WordsOfRun(_Part):
    """A column of words that a run was trained on."""

    kind: Literal["words"] = "words"
    name: str
    words: list[str]

    @property
    def made(self) -> Words:
        """The feature."""
        return Words(self.name, Kind({}), asked=True, seen={*self.words})


class ArraysOfRun(_Part):
    """A column of arrays that a run was trained on."""

    kind: Literal["arrays"] = "arrays"
    name: str
    dtype: str = Field(pattern=r"^(bool|u?int(8|16|32|64)|float(16|32|64))$")
    standardise: bool = False
    categories: bool = False
    figures: FiguresOfRun = Field(default_factory=lambda: FiguresOfRun.of(Figures()))

    @property
    def made(self) -> Arrays:
        """The feature."""
        return Arrays(
            self.name, np.dtype(self.dtype), self.standardise, self.categories, self.figures.made
        )


class TextOfRun(_Part):
    """A column of text that a run was trained on."""

    kind: Literal["text"] = "text"
    name: str
    tokenizer: str
    digest: str
    length: int
    longest: int
    answer: str | None = None

    @property
    def made(self) -> Text:
        """The feature.

        Raises:
            DataError: the tokeniser is not there any more, or another one.
        """
        tokeniser = Tokeniser.of(self.tokenizer)
        if tokeniser.digest != self.digest:
            raise DataError(
                f"{self.tokenizer}: is another tokeniser than the run's; restore it (sha256"
                f" {self.digest[:12]}...)"
            )
        given = self.name, tokeniser, self.length, self.longest
        return Text(*given) if self.answer is None else Language(*given, answer=self.answer)


ColumnOfRun = Annotated[
    NumbersOfRun | WordsOfRun | ArraysOfRun | TextOfRun,
    Field(discriminator="kind"),
]


class ColumnsOfRun(_Part):
    """Columns of inputs that a run was trained on, and what it did about missing values."""

    columns: list[ColumnOfRun]
    missing: Missing = "refuse"

    @property
    def is_language(self) -> bool:
        """Say whether the next token is predicted."""
        return any(isinstance(c, TextOfRun) and c.answer is not None for c in self.columns)

    @classmethod
    def of(cls, features: Sequence[Feature], missing: Missing) -> Self:
        """Describe features of which all training samples have been seen."""
        return cls(columns=[*map(_described, features)], missing=missing)

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the columns that a JSON text describes.

        Raises:
            ValueError: it describes none.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _described(feature: Feature) -> NumbersOfRun | WordsOfRun | ArraysOfRun | TextOfRun:
    if isinstance(feature, Words):
        return WordsOfRun(name=feature.name, words=sorted(feature.seen))
    if isinstance(feature, Text):
        return TextOfRun(
            name=feature.name,
            tokenizer=feature.tokeniser.name,
            digest=feature.tokeniser.digest,
            length=feature.length,
            longest=feature.longest,
            answer=feature.answer if isinstance(feature, Language) else None,
        )
    figures = FiguresOfRun.of(feature.figures)
    if isinstance(feature, Arrays):
        return ArraysOfRun(
            name=feature.name,
            dtype=str(feature.dtype),
            standardise=feature.standardise,
            categories=feature.categories,
            figures=figures,
        )
    return NumbersOfRun(
        name=feature.name,
        fill=feature.fill,
        standardise=feature.standardise,
        figures=figures,
        form=feature.form if isinstance(feature, Dates) else None,
    )


@dataclass
class NewRows:
    """Rows of a file or folder, read for a trained network.

    Attributes:
        source: The rows.
        features: The features that become the inputs.
        missing: What the run did about missing values.
        stored: Shape of a sample of the run.
        unknown: By column, the number of words that no training sample has, and the first.
        lacking: Number of rows that lack a value, and so have no inputs.
    """

    source: Source
    features: tuple[Feature, ...]
    missing: Missing
    stored: tuple[int, ...]
    unknown: dict[str, tuple[int, str]] = field(default_factory=dict)
    lacking: int = 0

    @classmethod
    def of(
        cls,
        path: Path,
        columns: ColumnsOfRun,
        stored: tuple[int, ...],
        image_size: int | None,
        tokens: int | None,
    ) -> Self:
        """Return the rows of a path.

        Args:
            path: A file, or a folder of files.
            columns: The columns that the run was trained on.
            stored: Shape of a sample of the run.
            image_size: Height and width to which the run resized images; None: it did not.
            tokens: Most tokens that the network takes; None: any number.

        Raises:
            DataError: it is in no known format, or lacks a column.
        """
        features = tuple(column.made for column in columns.columns)
        for text in (feature for feature in features if isinstance(feature, Text)):
            if tokens and tokens < text.length:
                text.length, text.limit = tokens, "the most that the model takes"
        texts = frozenset(feature.name for feature in features if isinstance(feature, Text))
        source = _source(path, _look(features, stored, image_size), texts)
        if len(features) == len(source.images) == 1:
            features[0].name = source.images[0]
        if absent := [f.name for f in features if f.name not in source.names]:
            needed = listed([feature.name for feature in features])
            hint = suggest(absent[0], [*source.names])
            raise DataError(
                f"{path}: has no column {shown(absent[0])}; the model reads {needed}; {hint}"
            )
        return cls(source, features, columns.missing, stored)

    @property
    def told(self) -> tuple[str, ...]:
        """Names of the columns that are repeated next to predictions: those of single values."""
        arrays = {*self.source.arrays(), *(f.name for f in self.features if isinstance(f, Arrays))}
        return tuple(name for name in self.source.names if name not in arrays)

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, Array, Array]]:
        """Yield batches of rows, the rows [n] that have inputs, and these inputs.

        Raises:
            DataError: a value does not fit the column that the run was trained on.
        """
        names = tuple(dict.fromkeys((*(f.name for f in self.features), *self.told)))
        start = 0
        for batch in self.source.read(names):
            there = self._there(batch, start)
            whole = batch.filter(pa.array(there))
            for feature in self.features:
                self._check(feature, whole, start + np.flatnonzero(there))
            x = np.empty((0, *self.stored), np.float32)
            if len(whole) and isinstance(text := self.features[0], Text):
                x, there[there] = text.encode_new(whole)
            elif len(whole):
                x = self._encoded(whole)
            yield batch, there, x
            start += len(batch)

    def _there(self, batch: pa.RecordBatch, start: int) -> Array:
        """Return which rows [n] have all values that they need."""
        there = np.ones(len(batch), dtype=bool)
        for feature in self.features:
            values = batch[feature.name]
            is_text = isinstance(feature, Text)
            values = texts_of(values, feature.name) if is_text else values
            fills = self.missing in ("mean", "zero") and not (is_text or is_list(values.type))
            missing = values.is_null() if is_text else is_missing(values)
            missing = missing.to_numpy(zero_copy_only=False)
            if fills or not missing.any():
                continue
            if self.missing == "refuse" or not (is_text or self.missing == "drop"):
                row = start + int(missing.argmax()) + 1
                raise DataError(
                    f"column {shown(feature.name)}: a value is missing in row {row}; the run was"
                    f" trained with dataset.missing={self.missing}, so each row needs one"
                )
            there &= ~missing
        self.lacking += int((~there).sum())
        return there

    def _check(self, feature: Feature, batch: pa.RecordBatch, rows: Array) -> None:
        """Check that the values of a column can be encoded; count unknown words."""
        values = batch[feature.name]
        where = f"column {shown(feature.name)}"
        if isinstance(feature, Text):
            return
        if isinstance(feature, Arrays):
            _check_arrays(feature, values.type, where)
        elif isinstance(feature, Dates):
            if as_dates(values, feature.form) is None:
                form = shown_forms(((feature.form,),))
                raise DataError(f"{where}: holds other values than dates of the form {form}")
        elif not (is_text(values.type) or is_number(values.type) or pa.types.is_null(values.type)):
            kind = shown(str(values.type))
            raise DataError(f"{where}: holds values of type {kind}; must be numbers or words")
        elif isinstance(feature, Words):
            self._count_unknown(feature, values)
        elif as_numbers(values) is None:
            words = as_words(values)
            odd = pc.index(pc.match_substring_regex(words, NUMBER), False).as_py()
            raise DataError(
                f"{where}: {shown(words[odd].as_py())} in row {rows[odd] + 1} is no number; the"
                " model reads numbers there"
            )

    def _count_unknown(self, feature: Words, values: pa.Array) -> None:
        words = pc.drop_null(as_words(values))
        unknown = words.filter(pc.invert(pc.is_in(words, pa.array([*feature.seen], pa.string()))))
        if len(unknown):
            count, first = self.unknown.get(feature.name, (0, unknown[0].as_py()))
            self.unknown[feature.name] = count + len(unknown), first

    def _encoded(self, batch: pa.RecordBatch) -> Array:
        x = inputs(self.features, batch)
        if x.shape[1:] != self.stored:
            has, wanted = ("x".join(map(str, shape)) for shape in (x.shape[1:], self.stored))
            raise DataError(
                f"{self.source.path}: a sample has {has} values; the model reads {wanted}"
            )
        return x

    def notes(self) -> Iterator[str]:
        """Yield lines on surprises, once all rows have been read."""
        for name, (count, first) in self.unknown.items():
            many = "1 row has a word" if count == 1 else f"{count} rows have words"
            yield (
                f"column {shown(name)}: {many} that no training sample has, {shown(first)} first;"
                " as in a test set, such a word is none of the known ones"
            )
        for text in (feature for feature in self.features if isinstance(feature, Text)):
            yield from text.notes_of_new()
        if self.lacking:
            yield (
                f"{self.lacking} rows lack a value, and have no prediction"
                f" (dataset.missing={self.missing})"
            )


def _check_arrays(feature: Arrays, kind: pa.DataType, where: str) -> None:
    """Check that arrays hold bytes where the run's do, and whole numbers where these are."""
    inner = kind
    while is_list(inner):
        inner = inner.value_type
    if feature.dtype == np.uint8 and not feature.standardise and inner != pa.uint8():
        raise DataError(f"{where}: holds {inner}; the model reads bytes (uint8), from 0 to 255")
    if feature.categories and not pa.types.is_integer(inner):
        raise DataError(f"{where}: holds {inner}; the model reads whole numbers there")


def _look(
    features: Sequence[Feature], stored: tuple[int, ...], image_size: int | None
) -> pictures.Look:
    """Return how images become inputs of the stored shape, if they are such."""
    alone = features[0] if len(features) == 1 else None
    if not isinstance(alone, Arrays) or len(stored) != 3 or stored[0] not in (1, 3):
        return pictures.Look(image_size)
    grey = "L" if alone.dtype == np.uint8 else pictures.NUMBERS
    return pictures.Look(image_size, "RGB" if stored[0] == 3 else grey)


def _source(path: Path, look: pictures.Look, texts: frozenset[str]) -> Source:
    """Return the rows of a path; of a folder of images, all below it.

    Args:
        path: A file, or a folder of files.
        look: Size and mode of images.
        texts: Columns whose cells are taken as they stand.

    Raises:
        DataError: there is nothing, or nothing of a known format.
    """
    if path.suffix.lower() == ZIP:
        raise DataError(f"{path}: is an archive; unpack it")
    inside = [*path.iterdir()] if path.is_dir() else [path]
    of_tables = [file for file in inside if tables.suffix_of(file) in tables.SUFFIXES]
    is_data = of_tables or any(file.suffix in (".npy", ".npz", ".h5") for file in inside)
    images = path.rglob("*") if path.is_dir() else inside
    if not is_data and any(pictures.is_image(image.name) for image in images):
        return pictures.unlabelled(path, look)
    try:
        sources: Mapping[str, Source] = find_sources(path, Reading(FRACTION, look, texts=texts))
    except DataError as error:
        raise DataError(str(error).removeprefix("dataset.path=")) from error
    if "" not in sources:
        raise DataError(f"{path}: has a training and a test set; name one file of rows")
    return sources[""]
