"""Answers of language models to a few prompts, of `analysis=answers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from raysim.errors import RunError
from raysim.results.compare import RunGroup
from raysim.results.render import Entry, Grid
from raysim.results.runs import RunRecord
from raysim.storage.recorder import ANALYSIS
from raysim.storage.rows.parted import read_table

NAME = "answers"
MOST = 600
"""Characters of a text that are shown."""
HOW = "Each token is the likeliest one after those before it; prompts are of the test set."


def answer_tables(groups: Sequence[RunGroup]) -> list[Grid]:
    """Return a table of the first run of each group whose answers were recorded.

    The answers are those of its first and of its last evaluated round.
    """
    tables = []
    for group in groups:
        if rows := _rows(record := group.records[0]):
            first, last = rows[0]["round"], rows[-1]["round"]
            before = {row["prompt"]: row["answer"] for row in rows if row["round"] == first}
            header = ("prompt", "wanted", *[f"round {first}"] * (first < last), f"round {last}")
            shown = [
                (
                    row["prompt"],
                    row["wanted"],
                    *[before.get(row["prompt"], "")] * (first < last),
                    row["answer"],
                )
                for row in rows
                if row["round"] == last
            ]
            entries = tuple(
                tuple(Entry(" ".join(text.split())[:MOST]) for text in row) for row in shown
            )
            tables.append(Grid(f"{group.label}, seed {record.seed}", header, entries, (HOW,)))
    return tables


def _rows(record: RunRecord) -> list[dict[str, Any]]:
    """Return the recorded answers of a run; none if it has not recorded any."""
    path = record.path / ANALYSIS / f"{NAME}.parquet"
    if not path.exists():
        return []
    try:
        columns = ["round", "prompt", "wanted", "answer"]
        rows: list[dict[str, Any]] = read_table(path).select(columns).to_pylist()
    except (RunError, LookupError, pa.ArrowException):
        return []
    return rows
