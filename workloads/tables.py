"""Tables by name: the papers' published ones, and those of adapters, which no paper has.

Importing this module reads the `tables.toml` of every paper and `adapters/*.toml`, without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.api.components import look_up
from raysim.errors import SettingsError, visible
from raysim.workloads.papers.table import PaperCell, PaperTable
from raysim.workloads.papers.table_file import read_tables
from raysim.workloads.sweeps import read_sweep

_FOLDER = Path(__file__).parent
TABLES: Mapping[str, PaperTable] = {
    table.name: table
    for name in ("fedmax", "dnc", "fedmmd", "fedfusion", "flexchill", "mifl", "pfllib")
    for table in read_tables(_FOLDER / "papers" / name / "tables.toml")
} | {path.stem: read_sweep(str(path)) for path in sorted(_FOLDER.glob("adapters/*.toml"))}


def find(name: str) -> PaperTable:
    """Return a table by its name.

    Raises:
        SettingsError: there is no such table.
    """
    if Path(name).suffix == ".toml":
        raise SettingsError(f"{visible(name)}: a file is run by raysim sweep")
    return look_up("table", name, TABLES)


def tuned_by(table: PaperTable, tune: Mapping[str, Any]) -> PaperTable:
    """Return a table whose runs are each searched first.

    A row that sets a searched setting itself, such as a control at a given learning rate, is left
    out: of it nothing would be left to search.

    Args:
        table: The table.
        tune: Keys of a table `[tune]`.

    Raises:
        SettingsError: no row is left.
    """
    keys = {*tune["space"]}
    rows = tuple(row for row in table.rows if not keys & table.row_keys[row])
    if not rows:
        raise SettingsError(f"--tune={visible(','.join(keys))}: all rows of {table.name} set it")
    left = [row for row in table.rows if row not in rows]
    notes = [f"Left out, as they set tuned keys: {'; '.join(left)}."] if left else []
    return replace(
        table,
        rows=rows,
        cells=tuple(cell for cell in table.cells if cell.row in rows),
        baseline=table.baseline if table.baseline in rows else "",
        reference_row=table.reference_row if table.reference_row in rows else "",
        notes=(*table.notes, *notes),
        tune={"each": "cell", **tune},
    )


__all__ = ["TABLES", "PaperCell", "PaperTable", "find", "tuned_by"]
