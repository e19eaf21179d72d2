"""Instructions drawn by rule: right answers, held-out prompts, seeds, and their tokens."""

from __future__ import annotations

import re
from datetime import date, timedelta

import numpy as np
import pytest

from raysim.errors import DataError
from raysim.federation.prepared import open_prepared, prepared
from raysim.workloads.datasets.instructions import DAYS, TASKS, Instructions
from tests.texts import numbers, write_tokenizer

SMALL = Instructions(pairs=60, test_pairs=10)
MONDAY = date(2024, 1, 1)


def expected(kind: str, prompt: str) -> str:
    """Return the answer to a prompt, read from its words."""
    values = [*map(int, re.findall(r"\d+", prompt))]
    words = prompt.partition(": ")[2]
    if kind == "weekday":
        first = next(number for number, day in enumerate(DAYS) if day in prompt)
        return (MONDAY + timedelta(first + values[0])).strftime("%A")
    return {
        "sum": lambda: str(values[0] + values[1]),
        "difference": lambda: str(values[0] - values[1]),
        "largest": lambda: str(sorted(values)[-1]),
        "sort": lambda: ", ".join(sorted(words.split(", "))),
        "reverse": lambda: ", ".join(reversed(words.split(", "))),
        "capitals": words.upper,
        "date": lambda: f"{values[2]}.{values[1]}.{values[0]}",
    }[kind]()


def test_answers_are_right_and_test_prompts_are_new():
    splits = SMALL.drawn()
    for prompt, answer, kind in splits["train"] + splits["test"]:
        assert answer == expected(kind, prompt), prompt
    prompts = [prompt for rows in splits.values() for prompt, *_ in rows]
    assert len({*prompts}) == len(prompts) == 70 * len(TASKS)
    assert SMALL.model_copy(update={"seed": 1}).drawn() != splits == SMALL.drawn()


def test_kinds_with_the_fewest_prompts_have_enough():
    assert len(Instructions(pairs=500, test_pairs=150).drawn()["train"]) == 500 * len(TASKS)


@pytest.mark.parametrize("split", ["train", "test"])
def test_tokens_of_prompts_and_answers_by_kind(tmp_path, split):
    write_tokenizer(tmp_path / "tokenizer", ends=False, eos_token="</s>")  # noqa: S106
    data = SMALL.model_copy(update={"tokenizer": str(tmp_path / "tokenizer")})
    paths = prepared(data, tmp_path, lambda *_: None)
    samples = open_prepared(data, paths[split])
    prompt, answer, kind = SMALL.drawn()[split][0]
    ids = [*numbers(prompt), *numbers(answer), *numbers("</s>")]
    assert samples.x[0][samples.x[0] >= 0].tolist() == ids[:-1]
    counted = np.flatnonzero(samples.y[0] >= 0)
    assert counted.tolist() == [len(ids) - 3, len(ids) - 2]
    assert samples.y[0][counted].tolist() == ids[-2:]
    assert samples.columns["client"][0] == kind
    assert np.unique(samples.columns["kind"]).tolist() == sorted(TASKS)


def test_a_length_that_prompts_fill_is_refused(tmp_path):
    write_tokenizer(tmp_path / "tokenizer", ends=False)
    data = SMALL.model_copy(update={"tokenizer": str(tmp_path / "tokenizer"), "length": 4})
    with pytest.raises(DataError, match=r"dataset.length=4: \d+ prompts fill it; must be larger$"):
        prepared(data, tmp_path, lambda *_: None)
