"""Folders of the papers: what they hold has their name, and is found by name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from raysim.workloads import papers
from raysim.workloads.figures import FIGURES
from raysim.workloads.papers.table_file import read_tables
from raysim.workloads.presets import ADAPTERS, PRESETS
from raysim.workloads.tables import TABLES

FOLDERS = sorted(path.parent for path in Path(papers.__file__).parent.glob("*/presets.py"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_all_that_a_paper_holds_begins_with_its_name_and_is_registered(folder):
    package = f"{papers.__name__}.{folder.name}"
    drawn = (folder / "figures.py").exists()  # a paper may have no figures, or no tables
    printed = (folder / "tables.toml").exists()
    tables = read_tables(folder / "tables.toml") if printed else []
    for names, registered, some in (
        ({*import_module(f"{package}.presets").PRESETS}, PRESETS, True),
        ({*import_module(f"{package}.figures").FIGURES} if drawn else set(), FIGURES, drawn),
        ({table.name for table in tables}, TABLES, printed),
    ):
        assert bool(names) == some
        assert names == {n for n in registered if n.startswith(f"{folder.name}-")}


def test_all_else_that_is_registered_is_of_adapters_or_for_getting_started():
    prefixes = tuple(f"{folder.name}-" for folder in FOLDERS)
    adapters = [*ADAPTERS, "adapters-1", "adapters-2", "adapters-privacy"]
    others = [n for n in (*PRESETS, *TABLES, *FIGURES) if not n.startswith(prefixes)]
    mnist = ["mnist-fedavg", "mnist-noniid", "mnist-1000", "mnist-million"]
    own = ["own-data", "own-images", "own-text", "own-prompts"]
    assert others == [*own, *mnist, *adapters]
