"""Questions with choices: a row of the test set for each choice, marked by its question.

A question has a list of choices, or in a CSV file choices separated by |, and the number of the
right one, from 0. In the test set each choice is an answer to the question, of which the likeliest
is chosen; of training rows the right one is the answer. Training rows without choices are prompts
and answers as others.

Legend: n rows of a batch, m rows with the choices of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from raysim.api.scoring import NO_QUESTION
from raysim.errors import DataError
from raysim.workloads.datasets.files.source import Batches, Source, as_words, shown

MARKS = ("number of a question", "right or wrong")
"""Columns of each row's question, NO_QUESTION for none, and 1 for a right answer, else 0."""
BETWEEN = "|"
"""Mark between choices that stand in one cell."""


def with_choices(source: Source, choices: str, answer: str, *, each: bool) -> Source:
    """Return a source whose answers are texts of choices, with the columns MARKS.

    Args:
        source: The source.
        choices: Column of choices; a source without it has none.
        answer: Column of the number of the right choice, or of an answer.
        each: Whether each choice is a row; else the right one alone.
    """
    places: list[int] = []

    def read(names: tuple[str, ...]) -> Batches:
        places.clear()
        wanted = [*names, *(n for n in (choices, answer) if n in source.names)]
        questions = start = 0
        for batch in source.read(tuple(n for n in dict.fromkeys(wanted) if n not in MARKS)):
            found = _Choices(batch, choices, answer, start, questions)
            if each and found.without:
                raise DataError(
                    f"dataset.choices={shown(choices)}: row {found.without[0]} of {source.path} has"
                    " none; each row of the test set must be a question with choices"
                )
            rows = [row for row in found.rows if each or row[3]]
            places.extend(start + at for at, *_ in rows)
            start, questions = start + len(batch), found.questions
            yield _batch(batch, rows, names, answer, each)

    return replace(
        source,
        names=(*source.names, *MARKS),
        read=read,
        origin=lambda row: source.file_of(places[row]),
    )


Row = tuple[int, str | None, int, int]
"""Place of a row in its batch, its answer, its question, and 1 if the answer is right."""


class _Choices:
    """Rows of a batch with their choices.

    Attributes:
        rows: The rows.
        questions: Number of questions so far.
        without: Numbers of rows that have an answer, but no choices; from 1.
    """

    def __init__(
        self, batch: pa.RecordBatch, choices: str, answer: str, start: int, questions: int
    ) -> None:
        self.questions = questions
        self.without: list[int] = []
        lists = batch[choices] if choices in batch.schema.names else pa.nulls(len(batch))
        answers = as_words(batch[answer]).to_pylist()
        self.rows = [*self._of(lists.to_pylist(), answers, start)]

    def _of(self, cells: Sequence[object], answers: list[str | None], start: int) -> Iterator[Row]:
        for at, (cell, answer) in enumerate(zip(cells, answers, strict=True)):
            texts = cell
            if isinstance(cell, str):
                texts = cell.split(BETWEEN) if cell.strip() else None
            if not texts and answer is not None:
                self.without.append(start + at + 1)
            if not texts or answer is None:
                yield at, answer, NO_QUESTION, 1
                continue
            if not isinstance(texts, list) or not all(isinstance(t, str | None) for t in texts):
                raise DataError(f"dataset.choices: row {start + at + 1} has no list of texts")
            if not answer.isdecimal() or int(answer) >= len(texts):
                raise DataError(
                    f"dataset.choices: the answer {shown(answer)} in row {start + at + 1} must be"
                    f" the number of one of {len(texts)} choices, from 0 to {len(texts) - 1}"
                )
            if not all((text or "").strip() for text in texts):
                raise DataError(f"dataset.choices: row {start + at + 1} has an empty choice")
            for number, text in enumerate(texts):
                yield at, text.strip(), self.questions, int(number == int(answer))
            self.questions += 1


def _batch(
    batch: pa.RecordBatch, rows: Sequence[Row], names: Sequence[str], answer: str, each: bool
) -> pa.RecordBatch:
    """Return columns of a batch [m], with answers and marks of rows."""
    taken = batch.take(pa.array([at for at, *_ in rows], pa.int64()))
    of_rows = {
        answer: pa.array([text for _, text, *_ in rows], pa.string()),
        MARKS[0]: pa.array([q if each else NO_QUESTION for _, _, q, _ in rows], pa.int64()),
        MARKS[1]: pa.array([right for *_, right in rows], pa.int64()),
    }
    fields = [
        pa.field(name, of_rows[name].type) if name in of_rows else taken.schema.field(name)
        for name in names
    ]
    columns = [of_rows[name] if name in of_rows else taken[name] for name in names]
    return pa.record_batch(columns, schema=pa.schema(fields))
