"""Run directories, written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from raysim.config import parse
from raysim.storage.declared import columns_of
from raysim.storage.rows.metrics import declared_in, with_declared
from raysim.storage.schema import SCHEMA
from raysim.storage.summary import summarise
from tests.tasks import long_settings

Rows = Sequence[Mapping[str, Any]]


def make_rows(accuracies: Sequence[float | None], **columns: Sequence[Any]) -> list[dict[str, Any]]:
    """Return rows of rounds: 10 bytes up and 20 down, 1 + 0.5 + 0.25 seconds each."""
    return [
        {
            "round": number,
            "train_loss": 2.0 / number,
            "test_loss": None if accuracy is None else 1 - accuracy,
            "test_accuracy": accuracy,
            "seconds": 1.0,
            "evaluation_seconds": 0.5,
            "checkpoint_seconds": 0.25,
            "bytes_up": 10,
            "bytes_down": 20,
            **{name: values[number - 1] for name, values in columns.items()},
        }
        for number, accuracy in enumerate(accuracies, start=1)
    ]


def write_run_at(
    path: Path, rows: Rows = (), *, finished: bool = True, own_task: bool = False, **overrides: Any
) -> Path:
    """Write a run directory of rows, finished or not; return its path."""
    path.mkdir(parents=True)
    at_least = {"rounds": len(rows)} if len(rows) > 5 else {}  # its rounds
    settings = long_settings(path, **at_least | overrides).to_dict()
    config = {"schema": SCHEMA, **settings, "own_task": own_task}
    (path / "config.json").write_text(json.dumps(config))
    (path / "environment.json").write_text('{"started": "2026-01-01", "python": "3.11.2"}')
    if rows:
        table = pa.Table.from_pylist([*rows])
        run = parse(settings)
        table = with_declared(table, columns_of(run))
        pq.write_table(table, path / "metrics.parquet")
        save_file({"w": torch.zeros(3)}, path / "model.safetensors")
    if finished and rows:
        summary = summarise([*rows], declared_in(table.schema), settings["target_accuracy"])
        (path / "summary.json").write_text(json.dumps(summary))
    return path


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run directory under a name; see `write_run_at`."""

    def write(name: str = "run", rows: Rows = (), **about: Any) -> Path:
        return write_run_at(tmp_path / name, rows, **about)

    return write
