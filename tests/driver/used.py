"""A run on a table, whose model is used: predictions, replays and exports."""

from __future__ import annotations

import csv
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.cli.app import main

COLUMNS = ("site", "age", "load", "city", "seen", "sick")
CITIES = ("Rome", "Oslo", "Bonn")
Command = Callable[..., tuple[Any, str, str]]
"""Runs a command in this process; returns its exit code, stdout and stderr."""


def rows(count: int, seed: int = 0) -> list[list[Any]]:
    """Return rows of the columns, in which some ages are missing."""
    draw = random.Random(seed)
    made = []
    for n in range(count):
        sick = draw.random() < 0.4
        age = "" if n % 9 == 8 else round(draw.gauss(70 if sick else 40, 10), 1)
        load = round(draw.gauss(3e3 if sick else 0, 1e3), 2)
        seen = f"2024-{1 + n % 12:02d}-{1 + n % 28:02d} {n % 24:02d}:30"
        made.append(
            [f"s{n % 3}", age, load, CITIES[n % len(CITIES)], seen, "yes" if sick else "no"]
        )
    return made


def write(path: Path, table: list[list[Any]], columns: tuple[str, ...] = COLUMNS) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *table])
    return path


def settings(folder: Path, **changes: Any) -> raysim.Settings:
    """Return the settings of a run on a folder's `train.csv`, tested on its `test.csv`."""
    chosen = {
        **{"dataset.name": "files", "dataset.path": str(folder / "train.csv")},
        **{"dataset.target": "sick", "dataset.client": "site", "dataset.split": "test.csv"},
        **{"dataset.dates": "seen", "dataset.missing": "mean", "dataset.standardise": True},
        **{"partition.name": "natural", "clients": 3, "model.name": "linear", "fraction": 1.0},
        **{"rounds": 4, "target_accuracy": None, "local.lr": 0.1, "checkpoint_every": 1},
        **{"engine.backend": "inline", "out": str(folder / "run")},
    }
    return raysim.load_config("mnist-fedavg", {**chosen, **changes})


def trained(folder: Path, **changes: Any) -> raysim.Result:
    """Return a run on a new table; its data is under the folder, too."""
    write(folder / "train.csv", rows(120))
    write(folder / "test.csv", rows(40, seed=1))
    return raysim.run(settings(folder, **changes))


def trained_with_test(folder: Path) -> None:
    """Train on the table, and keep its prepared test samples as `test.arrow`."""
    trained(folder)
    (prepared,) = folder.glob("data/files/prepared/*/test.arrow")
    shutil.copy(prepared, folder / "test.arrow")


def command_in(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Command:
    """Return what runs a command in a folder."""
    monkeypatch.chdir(folder)

    def command(*words: str) -> tuple[Any, str, str]:
        monkeypatch.setattr("sys.argv", ["raysim", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capsys.readouterr()

    return command


def files(folder: Path) -> dict[Path, bytes]:
    """Return the content of all files in a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
