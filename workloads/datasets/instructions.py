"""Instructions: prompts with answers, drawn by rule; each kind of task is a client's topic.

No source; chosen here, so that a language model has something to learn and a client has its own
kind of it. Prompts of the test set are none of the training set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field
from torch import Tensor

from raysim.api.scoring import LANGUAGE_MODEL, Scoring
from raysim.errors import DataError
from raysim.samples.data import NOTES, Progress, Split
from raysim.samples.preparation import PREPARATION
from raysim.user_input.limits import DataSeed
from raysim.workloads.datasets.drawn import data_stream
from raysim.workloads.datasets.files.applied import ColumnsOfRun
from raysim.workloads.datasets.files.texts import Language
from raysim.workloads.datasets.prepared import prepare_once
from raysim.workloads.datasets.text import TextDataset, Tokeniser

WORDS = (
    *("apple", "bread", "chair", "cloud", "dance", "eagle", "field", "glass", "honey", "island"),
    *("jacket", "kettle", "lemon", "mirror", "night", "ocean", "paper", "quiet", "river", "stone"),
    *("table", "uncle", "valley", "water", "yellow", "zebra"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
Draw = np.random.Generator
Pair = tuple[str, str]


def _sum(draw: Draw) -> Pair:
    a, b = draw.integers(1, 100, 2).tolist()
    return f"What is {a} plus {b}?", str(a + b)


def _difference(draw: Draw) -> Pair:
    a, b = sorted(draw.integers(1, 200, 2).tolist())
    return f"What is {b} minus {a}?", str(b - a)


def _largest(draw: Draw) -> Pair:
    numbers = draw.choice(100, 4, replace=False).tolist()
    return f"Which is the largest of {_listed(numbers)}?", str(max(numbers))


def _sorted(draw: Draw) -> Pair:
    words = draw.choice(WORDS, 4, replace=False).tolist()
    return f"Sort these words: {_listed(words)}", _listed(sorted(words))


def _reversed(draw: Draw) -> Pair:
    words = draw.choice(WORDS, 3, replace=False).tolist()
    return f"Turn the order around: {_listed(words)}", _listed(words[::-1])


def _capitals(draw: Draw) -> Pair:
    words = " ".join(draw.choice(WORDS, 3, replace=False).tolist())
    return f"Write in capitals: {words}", words.upper()


def _weekday(draw: Draw) -> Pair:
    first, later = int(draw.integers(7)), int(draw.integers(1, 100))
    return f"Which day is {later} days after {DAYS[first]}?", DAYS[(first + later) % 7]


def _date(draw: Draw) -> Pair:
    day = date(2000, 1, 1) + timedelta(int(draw.integers(20_000)))
    return f"Write {day.isoformat()} as day.month.year", f"{day.day}.{day.month}.{day.year}"


def _listed(values: list[int] | list[str]) -> str:
    return ", ".join(map(str, values))


TASKS: Mapping[str, Callable[[Draw], Pair]] = {
    **{"sum": _sum, "difference": _difference, "largest": _largest, "sort": _sorted},
    **{"reverse": _reversed, "capitals": _capitals, "weekday": _weekday, "date": _date},
}
"""Tasks by kind; each has 693 different prompts at least."""


class Instructions(TextDataset):
    """Prompts and answers of eight kinds of small tasks, drawn by rule, for language models.

    Sums, differences, the largest number, words to sort, to turn around or to write in capitals,
    days of the week and dates. The natural clients are the kinds. Prompts follow the chat template
    of the tokeniser, and only the tokens of answers count.
    """

    pairs: int = Field(default=400, ge=1, le=500, description="training pairs of a kind")
    test_pairs: int = Field(default=50, ge=1, le=150, description="test pairs of a kind")
    seed: DataSeed = Field(
        default=0, description="seed of the data; run: that of the run, so that each has its own"
    )
    scoring: ClassVar[Scoring] = LANGUAGE_MODEL
    client_column: ClassVar[str] = "kind"
    text_setting: ClassVar[str] = "dataset.name=instructions"
    is_language: ClassVar[bool] = True

    def decode(self, x: Tensor) -> Tensor:
        """Convert tokens [B, T] to integers for an embedding."""
        return x.long()

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Draw the pairs, and write the tokens of each split as an Arrow file.

        Raises:
            SettingsError: there is no tokeniser.
            DataError: its chat template fails, or a prompt fills `length`.
        """
        tokeniser = self.tokeniser
        splits = ("train", "test", NOTES, PREPARATION)
        fields = self.model_dump(exclude={"tokenizer"}).items()
        variant = ",".join(f"{name}={value}" for name, value in fields)
        variant += f",{tokeniser.digest[:16]}"

        def build(work_folder: Path) -> dict[str, Split]:
            return self._splits(tokeniser)

        return prepare_once(root / "instructions", splits, build, progress, variant)

    def drawn(self) -> dict[str, list[tuple[str, str, str]]]:
        """Return prompt, answer and kind of the pairs of each split, kind after kind."""
        splits: dict[str, list[tuple[str, str, str]]] = {"train": [], "test": []}
        for number, (kind, task) in enumerate(TASKS.items()):
            draw, answers = data_stream(self.seed, "instructions", number), dict[str, str]()
            while len(answers) < self.pairs + self.test_pairs:
                answers |= [task(draw)]
            rows = [(prompt, answer, kind) for prompt, answer in answers.items()]
            splits["train"] += rows[: self.pairs]
            splits["test"] += rows[self.pairs :]
        return splits

    def _splits(self, tokeniser: Tokeniser) -> dict[str, Split]:
        text = Language("prompt", tokeniser, self.length, answer="answer")
        kinds, batches = {}, {}
        for split, rows in self.drawn().items():
            prompts, answers, kinds[split] = zip(*rows, strict=True)
            texts = {"prompt": pa.array(prompts), "answer": pa.array(answers)}
            batches[split] = text.tokenised(pa.record_batch(texts))
        if text.short:
            raise DataError(
                f"dataset.length={self.length}: {len(text.short)} prompts fill it; must be larger"
            )
        about = {
            NOTES: text.notes(),
            PREPARATION: [ColumnsOfRun.of([text], "refuse").model_dump_json()],
        }
        lines = {n: Split(np.array(a, str), np.arange(len(a))) for n, a in about.items()}
        samples = {
            split: Split(
                text.encode(batch),
                text.targets(batch),
                {"kind": np.array(kinds[split], object)},
            )
            for split, batch in batches.items()
        }
        return {**samples, **lines}
