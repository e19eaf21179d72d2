"""Columns of text: tokens by hand, cuts, empty cells, other formats, and the tokeniser's files."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raysim
from raysim.errors import DataError
from raysim.federation.prepared import notes_of, prepared
from tests.texts import numbers, write_tokenizer
from tests.workloads.datasets.files import layouts
from tests.workloads.datasets.files.test_formats import dataset, read

BODIES = ["cheap pills now", "we meet at noon", "buy cheap pills", "lunch at noon", "  ", "buy now"]
SPAM = ["yes", "no", "yes", "no", "no", "yes"]
PARTS = ["train", "train", "test", "test", "train", "train"]
TABLE = {"body": BODIES, "size": [3, 4, 3, 3, 0, 2], "spam": SPAM, "part": PARTS}


@pytest.fixture
def tokenizer(tmp_path):
    return write_tokenizer(tmp_path / "tokenizer")


@pytest.fixture
def table(tmp_path):
    pq.write_table(pa.table(TABLE), tmp_path / "mails.parquet")
    return tmp_path / "mails.parquet"


def fields(folder, **changes):
    chosen = {"text": "body", "target": "spam", "split": "part", "missing": "drop"}
    return {**chosen, "tokenizer": str(folder), **changes}


def padded(text: str, width: int = 16) -> list[int]:
    ids = [1, *numbers(text), 2]
    return ids + [-1] * (width - len(ids))


def jsonl(table):
    rows = [dict(zip(TABLE, row, strict=True)) for row in zip(*TABLE.values(), strict=True)]
    path = table.with_suffix(".jsonl")
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def csv(table):
    layouts.text(table.with_suffix(".csv"), TABLE)
    return table.with_suffix(".csv")


@pytest.mark.parametrize("form", [lambda table: table, jsonl, csv])
def test_tokens_are_padded_and_rows_without_text_are_left_out(table, tokenizer, form):
    found = read(form(table), table.parent / "data", **fields(tokenizer))
    assert found["train"].x.tolist() == [padded(BODIES[row]) for row in (0, 1, 5)]
    assert found["test"].x.tolist() == [padded(BODIES[row]) for row in (2, 3)]
    assert found["train"].y.tolist() == [1, 0, 1]


def test_longer_texts_are_cut_and_counted(table, tokenizer):
    chosen = dataset(table, **fields(tokenizer, length=4))
    lines = notes_of(prepared(chosen, table.parent / "data", lambda *_: None))
    assert any("4 of 5 texts of 'body' have more than 4 tokens, and are cut" in n for n in lines)
    found = read(table, table.parent / "data", **fields(tokenizer, length=4))
    assert found["train"].x[:, :5].tolist() == [
        [1, *numbers("cheap pills"), 2, -1],
        [1, *numbers("we meet"), 2, -1],
        [1, *numbers("buy now"), 2, -1],
    ]


def test_a_text_of_many_characters_is_cut_where_the_whole_of_it_would_be(table, tokenizer):
    long = {"body": ["lunch " * 500, "we meet"] * 5, "spam": [0, 1] * 5}
    pq.write_table(pa.table(long), table)
    found = read(table, table.parent / "data", **fields(tokenizer, split=0.2, length=20))
    assert {*map(tuple, found["train"].x.tolist())} == {
        (1, *numbers("lunch " * 18), 2, *[-1] * 12),
        tuple(padded("we meet", 32)),
    }


def test_another_tokeniser_in_the_same_folder_prepares_the_data_again(table, tokenizer):
    first = read(table, table.parent / "data", **fields(tokenizer))
    write_tokenizer(tokenizer, ends=False)
    again = read(table, table.parent / "data", **fields(tokenizer))
    assert first["test"].x[0, :4].tolist() == [1, *numbers("buy cheap pills")]
    assert again["test"].x[0, :4].tolist() == [*numbers("buy cheap pills"), -1]


REFUSED = {
    "no such column": ({"text": "bodi"}, "dataset.text='bodi': no such column"),
    "numbers": ({"text": "size"}, "dataset.text='size': holds numbers alone"),
    "empty cells": ({"missing": "refuse"}, "column 'body': 1 value is missing, in row 5"),
    "no tokeniser": ({"tokenizer": None}, "dataset.text='body': needs a tokeniser"),
    "no folder": ({"tokenizer": "nowhere"}, "dataset.tokenizer=nowhere: no such folder"),
    "other inputs": ({"features": "size"}, "text=body: is the only input"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_text_that_does_not_fit(table, tokenizer, case, monkeypatch):
    monkeypatch.chdir(table.parent)
    changes, line = REFUSED[case]
    with pytest.raises(Exception, match=line):
        read(table, table.parent / "data", **fields(tokenizer, **changes))


def test_a_column_of_empty_cells(table, tokenizer):
    pq.write_table(pa.table({"body": ["", None, " "], "spam": [0, 1, 0]}), table)
    with pytest.raises(DataError, match=r"dataset\.text='body': has no text: all cells are empty"):
        read(table, table.parent / "data", **fields(tokenizer, split=0.4))
    assert not [*table.parent.rglob("*.arrow")]


@pytest.fixture
def run_dir(table, tokenizer, monkeypatch):
    """Return the folder of a run whose model has the tokeniser."""
    monkeypatch.setenv("RAYSIM_DATA", str(table.parent / "data"))
    changes = {
        **{"dataset.name": "files", "dataset.path": str(table), "dataset.text": "body"},
        **{"dataset.target": "spam", "dataset.split": "part", "dataset.missing": "drop"},
        **{"model.name": "tests.texts:BagOfTokens", "model.path": str(tokenizer)},
        **{"clients": 1, "fraction": 1.0, "rounds": 40, "local.lr": 0.5},
        **{"target_accuracy": None, "engine.backend": "inline", "out": str(table.parent / "run")},
    }
    raysim.run(raysim.load_config("mnist-fedavg", changes))
    return table.parent / "run"


def test_new_texts_are_predicted_with_the_tokens_of_training(run_dir, table, tokenizer):
    new = pa.table({"id": [1, 2, 3], "body": ["pills", None, "at noon " * 30]})
    pq.write_table(new, table.parent / "new.parquet")
    found = raysim.predict(run_dir, table.parent / "new.parquet")
    assert found["id"].to_pylist() == ["1", "2", "3"]
    assert found["prediction"].to_pylist() == ["yes", None, "no"]
    words = raysim.load(run_dir).state_dict()
    inputs = [1, *numbers("pills"), 2]
    mean = words["words.weight"][inputs].mean(0)
    logits = words["head.weight"] @ mean + words["head.bias"]
    assert found["p_yes"][0].as_py() == pytest.approx(float(logits.softmax(0)[1]), rel=1e-5)
    write_tokenizer(tokenizer, ends=False)
    with pytest.raises(DataError, match="is another tokeniser than the run's"):
        raysim.predict(run_dir, table.parent / "new.parquet")
