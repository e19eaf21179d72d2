"""Published tables of the papers by name: grids of runs with settings and values.

Importing this module reads the `tables.toml` of every paper, without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from raysim.core.components import look_up
from raysim.core.errors import SettingsError, visible
from raysim.workloads.papers.table import PaperCell, PaperTable
from raysim.workloads.papers.table_file import read_tables

TABLES: Mapping[str, PaperTable] = {
    table.name: table
    for name in ("fedmax", "dnc", "fedmmd", "fedfusion", "flexchill", "mifl")
    for table in read_tables(Path(__file__).parent / "papers" / name / "tables.toml")
}


def find(name: str) -> PaperTable:
    """Return a table by its name.

    Raises:
        SettingsError: there is no such table.
    """
    if Path(name).suffix == ".toml":
        raise SettingsError(f"{visible(name)}: a file is run by raysim sweep")
    return look_up("table", name, TABLES)


__all__ = ["TABLES", "PaperCell", "PaperTable", "find"]
