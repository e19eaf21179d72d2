"""Every block of every page is run, from top to bottom, or says why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from raysim.workloads.datasets.fetch import data_root
from tests.docs.blocks import ROOT, blocks_of
from tests.docs.reader import Reader

PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if any(blocks_of(path))]


@pytest.fixture
def reader(tmp_path, monkeypatch, capsys):
    """Return a reader in an empty folder, whose modules are forgotten afterwards."""
    monkeypatch.setenv("RAYSIM_DATA", str(data_root()))
    yield Reader(tmp_path, monkeypatch, capsys)
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands(page: Path, reader: Reader):
    for block in blocks_of(page):
        if block.mark not in ("not run", "full"):
            reader.follow(block)


@pytest.mark.full
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.mark == "full" for b in blocks_of(page))], ids=str
)
def test_commands_on_actors(page: Path, reader: Reader):
    for block in blocks_of(page):
        if block.mark != "not run":
            reader.follow(block)


def test_blocks_that_are_not_run_say_why():
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert len(blocks) > 50
    silent = [b.place for b in blocks if b.mark in ("not run", "full") and len(b.says) < 15]
    assert not silent
    assert len([b for b in blocks if b.mark == "not run"]) < len(blocks) / 5
