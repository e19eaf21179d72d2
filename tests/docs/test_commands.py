"""Every block of every page is run, from top to bottom, or says why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.reader import Reader

pytestmark = pytest.mark.ci

PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if any(blocks_of(path))]


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


def test_reasons_name_tests_that_exist():
    says = [block.says for page in PAGES for block in blocks_of(page)]
    named = [path.rstrip(".") for each in says for path in re.findall(r"tests/[\w/.]+", each)]
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []
