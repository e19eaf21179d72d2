"""A table on blobs, small enough for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim.storage.schema import GRIDS
from raysim.user_input import portable_name
from raysim.workloads.presets import Paper
from raysim.workloads.tables import PaperCell, PaperTable
from tests.tuning.common import PRESET

DIVERGING = {
    **{"local.lr": 0.5, "local.momentum": 0.99, "local.weight_decay": 1e3},
    **{"local.batch_size": 20, "method.mu": 0.0},
}
ROWS: Mapping[str, Mapping[str, Any]] = {
    "FedAvg": {"method.name": "fedavg"},
    "FedProx": {"method.mu": 0.1},
}
COLUMNS: Mapping[str, Mapping[str, Any]] = {"IID, long": {"rounds": 4}, "IID, short": {"rounds": 2}}
VALUES = {("FedAvg", "IID, long"): 70.0, ("FedProx", "IID, short"): 75.5}
NAME = "blobs-1"


def make_table(
    folder: Path,
    rows: Mapping[str, Mapping[str, Any]] = ROWS,
    columns: Mapping[str, Mapping[str, Any]] = COLUMNS,
    metrics: Mapping[str, str] | None = None,
    **fields: Any,
) -> PaperTable:
    """Return a table whose preset lies in a folder; some columns have metrics of their own."""
    preset, own = folder / "blobs.json", metrics or {}
    preset.write_text(json.dumps(PRESET))
    cells = [
        PaperCell(
            row=row,
            column=column,
            preset=str(preset),
            settings={**more, **settings},
            published=VALUES.get((row, column)),
            metric=own.get(column, ""),
            unit="" if column in own else None,
        )
        for row, settings in rows.items()
        for column, more in columns.items()
    ]
    return PaperTable(
        name=NAME,
        title="Accuracy on blobs",
        paper=Paper("Blobs", "Nobody. Blobs. 2026."),
        reference="table 1",
        metric="final(test_accuracy)",
        unit="%",
        rows=(*rows,),
        columns=(*columns,),
        cells=tuple(cells),
        seeds=range(2),
        notes=("A note of the table.",),
        row_keys={row: frozenset(settings) for row, settings in rows.items()},
        **fields,
    )


def run_of(path: Path) -> str:
    """Return the first label of a run in its folder's index, as a file is called, and its seed."""
    listed = index(path.parents[2]).items()
    names = [label for label, digest in listed if digest == path.parent.name]
    return f"{portable_name(names[0]) if names else 'unlisted'}/{path.name}"


def run_dir(out: Path, name: str) -> Path:
    """Return the directory of a run, which is named as by `run_of`."""
    label, _, seed = name.partition("/")
    [found] = {digest for each, digest in index(out).items() if portable_name(each) == label}
    return out / "runs" / found / seed


def index(out: Path) -> dict[str, str]:
    """Return the digests of the runs in a folder by label."""
    [about] = [path for name in GRIDS.values() if (path := out / name).exists()]
    found: dict[str, str] = json.loads(about.read_text())["runs"]
    return found


def times(out: Path) -> dict[str, int]:
    """Return when the runs in a table's folder ended, in ns."""
    return {run_of(path.parent): path.stat().st_mtime_ns for path in out.rglob("summary.json")}


def cells(out: Path) -> bytes:
    """Return the bytes of a table's cells."""
    return (out / "table.parquet").read_bytes()
