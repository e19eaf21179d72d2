"""Published tables of the papers: grids of runs, with their settings and published values.

One TOML file a paper. Importing this package reads them all, without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from raysim.core.components import look_up
from raysim.workloads.tables.read import read_tables
from raysim.workloads.tables.table import PaperCell, PaperTable

TABLES: Mapping[str, PaperTable] = {
    table.name: table
    for name in ("fedmax", "dnc", "fedmmd", "flexchill", "mifl")
    for table in read_tables(Path(__file__).with_name(f"{name}.toml"))
}


def find(name: str) -> PaperTable:
    """Return a table by its name.

    Raises:
        SettingsError: there is no such table.
    """
    return look_up("table", name, TABLES)


__all__ = ["TABLES", "PaperCell", "PaperTable", "find"]
