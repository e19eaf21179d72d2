"""Samples of sources as settings ask: checked, divided, encoded, and read in parts.

Legend: N samples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from raysim.api.components import suggest
from raysim.errors import DataError, SettingsError
from raysim.numbers.arrays import Array
from raysim.samples.data import Model, Progress, Split
from raysim.user_input.limits import MOST
from raysim.workloads.datasets.files.applied import ColumnsOfRun, Missing
from raysim.workloads.datasets.files.choices import MARKS, with_choices
from raysim.workloads.datasets.files.columns import (
    Arrays,
    Dates,
    Feature,
    Number,
    Words,
    inputs,
    listed,
    read_as,
)
from raysim.workloads.datasets.files.dates import First
from raysim.workloads.datasets.files.division import FRACTION, SPLITS, Rows, by_fraction
from raysim.workloads.datasets.files.kinds import Kind, Place
from raysim.workloads.datasets.files.source import Source, Sources, naming, shown
from raysim.workloads.datasets.files.targets import Classes, Targets, clients
from raysim.workloads.datasets.files.texts import Following, Language, Text, with_tokens
from raysim.workloads.datasets.text import TextDataset, Tokeniser
from raysim.workloads.models.pretrained.model import HuggingFace

PART_BYTES = 64 * 2**20
"""Bytes of inputs that are written as one part."""
RAW_SIZE = 10
"""If inputs reach this size, raysim tells the user how to scale them."""
MOST_TOLD = 3
"""Most columns that a line names."""
TARGETS = ("y", "label")
"""Targets of formats without column names of a user's own."""

UNNAMED = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Name of a column that has none, as pandas writes its index and reads it again."""

Task = Literal["classification", "regression"]


def _name(value: object) -> object:
    """Return the name of a column, which may be typed as a whole number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _names(value: object) -> object:
    """Return names, given as a list or as one word separated by commas, in brackets or not."""
    if isinstance(value := _name(value), str):
        bare = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        return tuple(name.strip() for name in bare.split(","))
    return tuple(map(_name, value)) if isinstance(value, list) else value


Name = Annotated[str, BeforeValidator(_name)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class Choice(TextDataset):
    """Settings that choose the parts of a source that become samples, and their encoding."""

    target: Name | None = Field(
        default=None, description="column to predict; none: y or label, of formats that have it"
    )
    features: Names | None = Field(
        default=None,
        description="columns of inputs; none: the images, or all but target, client, split and"
        " leave_out",
    )
    text: Name | None = Field(
        default=None,
        description="column of text, whose tokens are the inputs, and the only ones; without"
        " dataset.target the next token is predicted",
    )
    prompt: Name | None = Field(
        default=None, description="column of prompts, whose answers are predicted token by token"
    )
    answer: Name | None = Field(default=None, description="column of the answers to prompts")
    choices: Name | None = Field(
        default=None,
        description="column of choices, lists or separated by |, of which dataset.answer is the"
        " number of the right one, from 0; for a test file of questions",
    )
    leave_out: Names = Field(default=(), description="columns that are no inputs")
    client: Name | None = Field(
        default=None, description="column of natural clients, for partition.name=natural"
    )
    split: Annotated[float, Field(gt=0, lt=1)] | str = Field(
        default=FRACTION,
        description="test set: a fraction of the rows, a column of train and test, or a file",
    )
    task: Task = Field(
        default="classification", description="whether the target is a class or a number"
    )
    categories: Names = Field(
        default=(),
        description="features of numbers that are read as words, one input each; or one of arrays"
        " of integers, which then stay integers, for an embedding",
    )
    dates: Names = Field(
        default=(),
        description="columns of dates, read as month, weekday (Monday is 0) and hour",
    )
    dates_first: First | None = Field(
        default=None, description="what comes first in dates that can be read in several ways"
    )
    missing: Missing = Field(
        default="refuse",
        description="refuse missing values, drop their rows, or fill features in; words become 0",
    )
    texts: Literal["refuse", "leave_out"] = Field(
        default="refuse",
        description="refuse or leave out columns of text with too many different words for inputs",
    )
    standardise: bool = Field(
        default=False,
        description="features of numbers less their mean, by their deviation; images stay",
    )

    @model_validator(mode="after")
    def _of_dates(self) -> Self:
        if self.dates_first and not self.dates:
            raise ValueError(f"dates_first={self.dates_first}: needs dataset.dates")
        return self

    @model_validator(mode="after")
    def _text_is_alone(self) -> Self:
        if self.choices and not self.prompt:
            raise ValueError(f"choices={shown(self.choices)}: needs dataset.prompt, too")
        if not (text := self.text_setting.removeprefix("dataset.")):
            return self
        if (self.prompt is None) != (self.answer is None):
            needed = "prompt" if self.prompt is None else "answer"
            raise ValueError(f"{text}: needs dataset.{needed}, too")
        others = ["features", "categories", "dates", "standardise"]
        others += ["text", "target"] if self.prompt else []
        if given := [name for name in others if getattr(self, name)]:
            raise ValueError(f"{text}: is the only input; leave out dataset.{given[0]}")
        if self.task == "regression":
            raise ValueError(f"task=regression: does not go with dataset.{text}")
        return self

    @property
    def text_setting(self) -> str:
        """Setting that makes inputs of texts, as it is typed; empty where none does."""
        for name in ("prompt", "answer", "text"):
            if value := getattr(self, name):
                return f"dataset.{name}={shown(value)}"
        return ""

    def for_model(self, model: Model) -> Self:
        """Return the dataset of a run with this model: its tokeniser is the default.

        Raises:
            SettingsError: the model is for another task, or drawn for fewer tokens.
            DataError: the tokeniser has more tokens than the model embeds.
        """
        chosen = super().for_model(model)
        rows = model.random.get("vocab_size") if isinstance(model, HuggingFace) else None
        if self.text_setting and rows and (tokens := len(chosen.tokeniser.loaded)) > rows:
            raise SettingsError(
                f"model.random.vocab_size={rows}: embeds fewer tokens than the {tokens} of"
                f" {chosen.tokenizer}"
            )
        return chosen

    @property
    def is_language(self) -> bool:
        """Say whether the next token is predicted."""
        return bool(self.prompt or (self.text and not self.target))

    @property
    def task_setting(self) -> str:
        """Setting that decides whether a class or the next token is predicted, as it is typed."""
        if self.text and self.target:
            return f"dataset.target={shown(self.target)}"
        without = " without dataset.target" if self.text else ""
        return f"{self.text_setting}{without}"


def target_of(source: Source, choice: Choice) -> str:
    """Return the column to predict; empty if none is known."""
    known = [name for name in TARGETS if name in source.names]
    return source.target or choice.target or next(iter(known), "")


@dataclass(frozen=True)
class Roles:
    """Columns of a source by role; those without a column are empty, but features and target."""

    features: tuple[str, ...]
    target: str
    client: str
    split: str
    texts: tuple[str, ...]
    marks: tuple[str, ...]

    @classmethod
    def of(cls, sources: Sources, choice: Choice) -> Roles:
        """Return the columns that the settings name.

        Raises:
            DataError: the first source lacks a column, or a column has two roles.
        """
        source = next(iter(sources.values()))
        texts = tuple(name for name in (choice.text, choice.prompt, choice.answer) if name)
        target = texts[-1] if choice.is_language else target_of(source, choice)
        if not target:
            names = shown(", ".join(source.names))
            raise DataError(
                f"dataset.target: must name a column of {source.path}: {names}; or a file of"
                " targets beside it"
            )
        client = choice.client or source.client
        split = choice.split if isinstance(choice.split, str) and "" in sources else ""
        left_out = (target, client, source.client, split, *choice.leave_out)
        others = [n for n in source.names if n not in left_out and not UNNAMED.fullmatch(n)]
        if len(source.images) == 1 and source.images[0] in others:
            others = [*source.images]
        marks = MARKS if choice.choices else ()
        features = texts[:1] or choice.features or tuple(others)
        roles = cls(features, target, client, split if split in source.names else "", texts, marks)
        _check_texts(roles, choice)
        roles._check(source, choice)
        return roles

    def _check(self, source: Source, choice: Choice) -> None:
        chosen = {name: "features" for name in self.features} | {
            name: "categories" for name in choice.categories
        }
        chosen |= {name: "dates" for name in choice.dates}
        chosen |= {name: "leave_out" for name in choice.leave_out if name not in chosen}
        chosen |= {self.client: "client", self.target: "target"}
        chosen |= {n: of for of in ("text", "prompt", "answer") if (n := getattr(choice, of))}
        for name, setting in chosen.items():
            if name and name not in source.names:
                raise _no_column(setting, name, source)
        for setting in ("categories", "dates"):
            if strange := [n for n in getattr(choice, setting) if n not in self.features]:
                raise DataError(
                    f"dataset.{setting}={shown(strange[0])}: is not among the features,"
                    f" {shown(', '.join(self.features))}"
                )
        if both := [name for name in choice.dates if name in choice.categories]:
            raise DataError(f"dataset.dates={shown(both[0])}: is in dataset.categories, too")
        needed = (*self.features, self.target)
        if taken := [name for name in choice.leave_out if name in needed]:
            raise DataError(
                f"dataset.leave_out={shown(taken[0])}: is a feature or the target, too; name it in"
                " one of these settings"
            )
        if not self.features:
            raise DataError(
                f"{source.path}: has no column in addition to the target; needs a feature"
            )
        doubled = self.target in self.features and not choice.is_language
        if len({*self.features}) < len(self.features) or doubled:
            names = shown(",".join(self.features))
            raise DataError(
                f"dataset.features={names}: must name each column once, and not the target"
                f" {shown(self.target)}"
            )
        if self.split in self.used:
            raise DataError(
                f"dataset.split={shown(self.split)}: is a feature, the target or the client, too;"
                " must be a column for itself"
            )

    @property
    def used(self) -> tuple[str, ...]:
        """Columns that are read, each once."""
        names = (*self.features, self.target, self.client, *self.marks)
        return tuple(dict.fromkeys(name for name in names if name))

    def needed(self, missing: Missing) -> tuple[str, ...]:
        """Return the columns that rows need values in; rows without them are left out."""
        return {"refuse": (), "drop": self.used}.get(missing, self.of_samples)

    @property
    def of_samples(self) -> tuple[str, ...]:
        """Columns without which a row is no sample: the target, the client and the text."""
        names = (*self.texts, self.target, self.client)
        return tuple(dict.fromkeys(name for name in names if name))


def _no_column(setting: str, name: str, source: Source) -> DataError:
    hint = suggest(name, [*source.names])
    if setting == "client" and name.isdecimal():
        hint = f"clients={name} is the number of clients"
    return DataError(f"dataset.{setting}={shown(name)}: no such column in {source.path}; {hint}")


@dataclass(frozen=True)
class Samples:
    """Samples of the training and the test set, in parts.

    Attributes:
        rows: The rows of each split.
        features: The features, with the figures of the training set.
        target: The target.
        client: Column of natural clients; empty without any.
        clients: Type of the natural clients.
        left_out: Lines on rows and files that are left out.
        missing: What is done about missing values.
    """

    rows: Mapping[str, Rows]
    features: tuple[Feature, ...]
    target: Classes | Targets | Following
    client: str
    clients: pa.DataType
    left_out: tuple[str, ...]
    missing: Missing

    @classmethod
    def of(
        cls,
        sources: Sources,
        choice: Choice,
        progress: Progress,
        tokeniser: Tokeniser | None = None,
        work_folder: Path = Path(),
    ) -> Samples:
        """Read the sources twice, for the kinds of columns and for the training set's figures.

        Args:
            sources: The sources.
            choice: The settings.
            progress: Called as the work proceeds.
            tokeniser: Tokeniser of the column of text; None: there is none.
            work_folder: Folder for files that are needed while the samples are read.

        Raises:
            DataError: they do not fit the settings.
        """
        sources = _asked(sources, choice) if choice.choices else sources
        roles = Roles.of(sources, choice)
        text = _text(roles, choice, tokeniser) if tokeniser else None
        if text:
            files = {name: work_folder / f"tokens-{name}" for name in sources}
            sources = {n: with_tokens(source, text, files[n]) for n, source in sources.items()}
            text.check(next(iter(sources.values())).path, choice.missing)
        needed = roles.needed(choice.missing)
        whole = {name: Rows(source, roles.used, needed=needed) for name, source in sources.items()}
        progress("read files", 0, 3)
        short = text if isinstance(text, Language) else None
        kinds, notes = _kinds(whole, roles, choice, short)
        _check_missing(kinds, roles, choice)
        notes += _filled(kinds, choice)
        rows = _divided(sources, roles, choice)
        alone = len(roles.features) == 1
        features: tuple[Feature, ...] = (text,) if text else ()
        features = features or tuple(_feature(n, kinds[n], choice, alone) for n in roles.features)
        target: Classes | Targets | Following
        if isinstance(text, Language):
            target = Following(roles.target, text)
        else:
            target = _target(roles.target, kinds[roles.target], choice)
        kind_of_clients = kinds[roles.client].clients if roles.client else pa.string()
        unread = dict.fromkeys(source.unread for source in sources.values() if source.unread)
        notes += tuple(f"not read: {shown(', '.join(names))[1:-1]}" for names in unread)
        what = rows, features, target, roles.client, kind_of_clients, notes, choice.missing
        samples = cls(*what)
        progress("read files", 1, 3)
        samples._fit()
        progress("read files", 2, 3)
        return samples._without_texts()

    def _fit(self) -> None:
        train, count = self.rows["train"], 0
        plain = {f.name for f in self.features if isinstance(f, Arrays) and not f.standardise}
        names = tuple(name for name in train.names if name not in plain)
        seeing = [column for column in (*self.features, self.target) if column.name not in plain]
        for batch in train.only(names):
            count += len(batch)
            for column in seeing:
                column.see(batch)
        if not count:
            raise DataError(f"{self.rows['train'].source.path}: the training set has no samples")
        self.target.check()

    def _without_texts(self) -> Samples:
        """Return the samples without columns of text, which are refused unless they are optional.

        Raises:
            DataError: there is such a column, or no other feature.
        """
        texts = [f for f in self.features if isinstance(f, Words) and f.is_text and f.optional]
        for column in self.features:
            if isinstance(column, Words) and column not in texts:
                column.check()
        features = tuple(column for column in self.features if column not in texts)
        if not features:
            path = self.rows["train"].source.path
            raise DataError(f"{path}: {texts[0].left_out}; no other is left")
        notes = tuple(text.left_out for text in texts)
        return replace(self, features=features, left_out=(*self.left_out, *notes))

    @property
    def labels(self) -> list[str]:
        """Labels by class number."""
        return self.target.labels if isinstance(self.target, Classes) else []

    def notes(self) -> Iterator[Split]:
        """Yield lines on surprises, once all samples have been encoded."""
        lines = [
            self._read_as(),
            *self.left_out,
            *_standardised(self.features),
            *_raw_sizes(self.features),
            *self.target.notes(),
            *(line for f in self.features if isinstance(f, Text) for line in f.notes()),
        ]
        yield Split(np.array(lines, dtype=str), np.arange(len(lines)))

    def preparation(self) -> Iterator[Split]:
        """Yield how columns become inputs, as JSON, once all samples have been encoded."""
        text = ColumnsOfRun.of(self.features, self.missing).model_dump_json()
        yield Split(np.array([text], dtype=str), np.arange(1))

    def _read_as(self) -> str:
        """Return how the columns were read."""
        widths = [math.prod(feature.shape) for feature in self.features]
        alone = self.features[0].shape if len(widths) == 1 else (sum(widths),)
        target = f"target {shown(self.target.name)}"
        target += f" ({len(self.labels)} classes)" if self.labels else " (a number)"
        if isinstance(self.target, Following):
            target = f"target: the next token of {shown(self.target.name)}"
        client = [f"clients {shown(self.client)}"] if self.client else []
        told = [*read_as(self.features), target, *client]
        source = self.rows["train"].source
        used = (*self.rows["train"].names, self.rows["train"].column)
        if dropped := [name for name in source.names if name and name not in used]:
            told.append(f"left out {listed(dropped)}")
        return f"samples of {'x'.join(map(str, alone))}, read as: {'; '.join(told)}"

    def parts(self, split: str) -> Iterator[Split]:
        """Yield the samples of a split in parts of about PART_BYTES.

        Raises:
            DataError: the split has no samples, or a value does not fit.
        """
        waiting: list[Split] = []
        done = False
        for batch in self.rows[split]:
            row_bytes = self._encoded(batch.slice(0, 1)).x.nbytes  # one-hot words may be wide
            rows = max(PART_BYTES // max(row_bytes, 1), 1)
            for start in range(0, len(batch), rows):
                waiting.append(self._encoded(batch.slice(start, rows)))
                if sum(part.x.nbytes for part in waiting) >= PART_BYTES:
                    yield _joined(waiting)
                    waiting = []
            done = True
        if not done:
            raise DataError(f"{self.rows[split].source.path}: the {split} set has no samples")
        if waiting:
            yield _joined(waiting)

    def _encoded(self, batch: pa.RecordBatch) -> Split:
        columns = {"client": clients(batch[self.client], self.clients)} if self.client else {}
        return Split(inputs(self.features, batch), self.target.encode(batch), columns)


def _standardised(features: Sequence[Feature]) -> list[str]:
    """Return a line on the numbers that are standardised, if there are any."""
    if not any(isinstance(f, Number | Arrays) and f.standardise for f in features):
        return []
    return [
        "numbers are standardised: less their training mean, by their deviation;"
        " dataset.standardise=false leaves them as they are"
    ]


def _raw_sizes(features: Sequence[Feature]) -> list[str]:
    """Return a line on inputs that are so large that training may diverge, if there are any."""
    if not (large := [feature for feature in features if feature.size > RAW_SIZE]):
        return []
    told = ", ".join(
        f"{shown(feature.name)} up to {feature.size:.4g}" for feature in large[:MOST_TOLD]
    )
    told += f" and {len(large) - MOST_TOLD} more" if len(large) > MOST_TOLD else ""
    scaled = "dataset.standardise=true scales numbers by their mean and deviation"
    if any(len(feature.shape) > 1 for feature in large):
        scaled = f"divide them, by {large[0].size:.4g} say"
    return [f"inputs of raw size may make training diverge: {told}; {scaled}"]


def _kinds(
    rows: Mapping[str, Rows], roles: Roles, choice: Choice, text: Language | None
) -> tuple[dict[str, Kind], tuple[str, ...]]:
    """Return the kinds of columns, of several sources together, and lines on rows left out."""
    names_by_setting = {
        name: getattr(choice, name) for name in ("leave_out", "categories", "dates")
    }
    plain = {*roles.features} - {*roles.texts}
    kinds = {name: Kind(names_by_setting, name in plain) for name in roles.used}
    total = left_out = 0
    for part in rows.values():
        if absent := sorted({*roles.used} - {*part.source.names}):
            raise DataError(f"{part.source.path}: has no column {shown(absent[0])}")
        unread = part.source.arrays()
        for name in kinds.keys() & unread.keys():
            kinds[name].see_arrays(*unread[name], name)
        names = [name for name in kinds if name not in unread]
        chosen = part.only(tuple(names or [roles.target]))
        above = part.source.path.parent if len(rows) > 1 else part.source.path
        start = count = 0
        for whole in chosen.whole():
            complete = chosen.complete(whole)
            batch = whole.filter(pa.array(complete)) if chosen.needed else whole
            place = partial(_place, part.source, start + np.flatnonzero(complete), above)
            start += len(whole)
            total, left_out = total + len(whole), left_out + len(whole) - len(batch)
            if (count := count + len(batch)) > MOST:
                raise DataError(f"{part.source.path}: has more than {MOST} rows")
            for name in names:
                see = _looked_at(kinds[name], name, roles, choice)
                see(batch[name], batch.schema.field(name), place)
    path = next(iter(rows.values())).source.path
    return kinds, _rows_left_out(path, left_out, total, roles, choice.missing, text=text)


def _looked_at(
    kind: Kind, name: str, roles: Roles, choice: Choice
) -> Callable[[pa.Array, pa.Field, Place], object]:
    """Return the function of a kind that takes in a batch of its column, by the column's role."""
    if name in roles.texts:
        return lambda values, column, place: kind.count(values, place)
    if name == roles.client and name not in (*roles.features, roles.target):
        return lambda values, column, place: kind.see_clients(values, place)
    return kind.see_dates if name in choice.dates else kind.see


def _rows_left_out(
    path: Path, left_out: int, total: int, roles: Roles, missing: Missing, *, text: Language | None
) -> tuple[str, ...]:
    """Return lines on rows that are left out, as they lack a value or a token to predict.

    Raises:
        DataError: all are.
    """
    lacked = "a value"
    if roles.needed(missing) != roles.used:
        lacked = f"a value of {' or '.join(map(shown, roles.of_samples))}"
    if left_out == total > 0:
        raise DataError(
            f"{path}: all {total} rows lack {lacked}, so that dataset.missing={missing} leaves"
            " none; dataset.leave_out=COLUMN goes on without a column"
        )
    lacking = left_out - len(text.short if text else ())
    lines = [f"{lacking} of {total} rows lack {lacked}, and are left out"] if lacking else []
    return (*lines, *(text.left_out() if text else ()))


def _place(source: Source, rows: Array, above: Path, index: int) -> str:
    """Return the place of a value: the number of its row, from 1, and the file of several."""
    path, row = source.file_of(rows[index])
    return f"row {row + 1}" + ("" if path == above else f" of {path.relative_to(above)}")


def _check_missing(kinds: Mapping[str, Kind], roles: Roles, choice: Choice) -> None:
    for name, kind in kinds.items():
        if kind.feature and kind.missing and not (kind.present or kind.lists):
            raise DataError(
                f"column {shown(name)}: has no values;"
                f" {naming('leave_out', name, kind.names)} goes on without it"
            )
        count = kind.missing
        if count and (kind.lists or choice.missing == "refuse"):
            advice = "dataset.missing=drop leaves such rows out"
            if name in roles.of_samples:
                advice += ", as mean and zero do, which fill in features"
            elif not kind.lists:
                advice += ", dataset.missing=mean fills in the training mean"
            are = "1 value is missing," if count == 1 else f"{count} values are missing, the first"
            raise DataError(f"column {shown(name)}: {are} in {kind.lack}; {advice}")


def _filled(kinds: Mapping[str, Kind], choice: Choice) -> tuple[str, ...]:
    """Return a line on missing values that are filled in, if there are any."""
    lacking = {n: kind.missing for n, kind in kinds.items() if kind.feature and kind.missing}
    if not lacking or choice.missing not in ("mean", "zero"):
        return ()
    filled = "their training mean, words with 0" if choice.missing == "mean" else "0"
    return (
        f"{sum(lacking.values())} missing values of {listed([*lacking])} are filled in with"
        f" {filled}; dataset.missing=drop leaves such rows out",
    )


def _divided(sources: Sources, roles: Roles, choice: Choice) -> dict[str, Rows]:
    needed = roles.needed(choice.missing)
    if "train" in sources:
        return {name: Rows(sources[name], roles.used, needed=needed) for name in SPLITS}
    (source,) = sources.values()
    if roles.split:
        return {
            name: Rows(source, roles.used, column=roles.split, split=name, needed=needed)
            for name in SPLITS
        }
    if isinstance(choice.split, str):
        raise DataError(
            f"dataset.split={shown(choice.split)}: is neither a column of {source.path} nor a file;"
            f" {suggest(choice.split, [*source.names])}"
        )
    total = sum(len(batch) for batch in source.read((roles.target,)))
    chosen = by_fraction(choice.split, total)
    return {name: Rows(source, roles.used, chosen[name], needed=needed) for name in SPLITS}


def _check_texts(roles: Roles, choice: Choice) -> None:
    """Check that a column of text has no other role.

    Raises:
        DataError: one has.
    """
    texts = {of: getattr(choice, of) for of in ("text", "prompt", "answer", "choices")}
    others = {"target": choice.target, "client": roles.client, "split": roles.split}
    setting_of: dict[str, str] = {}
    for setting, name in (texts | others).items() if roles.texts else ():
        if name and setting_of.setdefault(name, setting) != setting:
            raise DataError(
                f"dataset.{setting}={shown(name)}: is dataset.{setting_of[name]}, too; must be a"
                " column for itself"
            )


def _asked(sources: Sources, choice: Choice) -> Sources:
    """Return sources of questions: of the test set each choice is a row, of others the right one.

    Raises:
        DataError: there is no test set of its own, or it has no choices.
    """
    choices, answer = choice.choices or "", choice.answer or ""
    if "test" not in sources:
        raise DataError(
            f"dataset.choices={shown(choices)}: needs questions in a file of their own:"
            " dataset.split=FILE"
        )
    test = sources["test"]
    for setting, name in (("choices", choices), ("answer", answer)):
        if name not in test.names:
            raise _no_column(setting, name, test)
    return {
        split: with_choices(source, choices, answer, each=split == "test")
        for split, source in sources.items()
    }


def _text(roles: Roles, choice: Choice, tokeniser: Tokeniser) -> Text:
    given = roles.features[0], tokeniser, choice.length
    return Language(*given, answer=choice.answer or "") if choice.is_language else Text(*given)


def _feature(name: str, kind: Kind, choice: Choice, alone: bool) -> Feature:
    if kind.arrays:
        return _arrays(name, *kind.arrays, choice, alone)
    if name in choice.categories:
        return Words(name, kind, asked=True)
    if kind.numbers:
        how = name, choice.missing == "mean", choice.standardise
        if name in choice.dates:
            return Dates(*how, form=kind.date_form(name, choice.dates_first))
        return Number(*how)
    kind.check_words(name)
    return Words(name, kind, asked=False, optional=choice.texts == "leave_out")


def _arrays(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], choice: Choice, alone: bool
) -> Arrays:
    categories = name in choice.categories
    if categories and (dtype.kind not in "iu" or choice.standardise or not alone):
        raise DataError(
            f"dataset.categories={shown(name)}: holds arrays of {dtype}; must be of integers, the"
            " only feature, and without dataset.standardise"
        )
    is_image = dtype == np.uint8 and len(shape) > 1
    return Arrays(name, dtype, choice.standardise and not is_image, categories)


def _target(name: str, kind: Kind, choice: Choice) -> Classes | Targets:
    if choice.task == "classification":
        if kind.arrays:
            raise DataError(
                f"dataset.target={shown(name)}: holds arrays; a class must be a number or a word:"
                " of one-hot classes, numpy.argmax(y, axis=1)"
            )
        return Classes(name, kind.labels)
    if not kind.numbers:
        held = f"words, {shown(kind.odd.word)} in {kind.odd.place} say" if kind.odd else ""
        held = "numbers with commas" if kind.commas else held
        raise DataError(
            f"dataset.target={shown(name)}: holds {held}; must hold numbers, as 1.5, for"
            " dataset.task=regression"
        )
    return Targets(name)


def _joined(parts: list[Split]) -> Split:
    return Split(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
    )
