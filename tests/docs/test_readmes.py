"""Blocks of the README pages: commands are such that raysim takes; of the others, who runs them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
import typer

from raysim.cli import submitted
from raysim.cli.app import app
from tests.docs.blocks import COMMANDS, ROOT, Block, blocks_of

pytestmark = pytest.mark.ci

PAGES = [
    *("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "raysim/GLOSSARY.md"),
    *("workloads/README.md", "workloads/DATA.md", "workloads/papers/READING.md"),
    *("workloads/papers/RESULTS.md", "tuning/README.md", "cluster/README.md", "cluster/sizing.md"),
    *("tests/benchmarks/README.md", "tests/benchmarks/RESULTS.md", "examples/README.md"),
]
NOTHING = "a drawing, or a file that others describe"
ELSEWHERE = {
    ("README.md", "pip install -c constraints.txt . "): ".ci/run",
    ("README.md", "pip install -c constraints.txt '.[dev]'"): ".ci/run",
    ("README.md", '"""FedAvgM'): "tests/test_readme.py",
    ("CONTRIBUTING.md", "git clone"): "it sets up the checkout in which tests run",
    ("CONTRIBUTING.md", "import numpy"): "tests/test_contributing.py",
    ("CONTRIBUTING.md", "from dataclasses"): "tests/test_contributing.py",
    ("CONTRIBUTING.md", "import torch"): "tests/test_contributing.py",
    ("CONTRIBUTING.md", "from raysim.testing"): "tests/driver/test_components.py",
    ("ARCHITECTURE.md", " "): NOTHING,
    ("workloads/DATA.md", ""): "tests/workloads/test_data_page.py",
    ("workloads/papers/RESULTS.md", "import"): "tests/workloads/papers/test_results_page.py",
    ("tuning/README.md", 'preset = "mnist-noniid"'): "tests/tuning/tables/test_sweep.py",
    ("tuning/README.md", "[tune]"): "tests/tuning/tables/test_tuned.py",
    ("examples/README.md", "pip install"): "it starts a server; tests execute the notebooks",
}
"""Who runs a block of a page, by its first words: a test, or a reason why nobody does."""
UNRUN = ("not run", "full")
SAVED = {
    block.says
    for page in (ROOT / "docs").glob("*.md")
    for block in blocks_of(page)
    if block.mark == "file"
}
OWN = (*SAVED, "my_", "my.toml", "hospitals", "photos")
"""Files of the reader's own, in commands that those tests run."""


def others() -> Iterator[Block]:
    """Yield the blocks that are no commands of raysim."""
    for page in PAGES:
        for block in blocks_of(ROOT / page):
            own = all(re.match(r"raysim |RAY_", line) for line in block.lines)
            if block.language not in COMMANDS or not own:
                yield block


def commands() -> Iterator[str]:
    """Yield the commands of raysim, once each; of other pages those that are not run there."""
    found: dict[str, None] = {}
    for page in [*map(ROOT.joinpath, PAGES), *(ROOT / "docs").glob("*.md")]:
        for block in blocks_of(page):
            if block.language in COMMANDS and (page.parent.name != "docs" or block.mark in UNRUN):
                found |= dict.fromkeys(line for line in block.lines if line.startswith("raysim "))
    yield from (line for line in found if "  |" not in line and "   raysim" not in line)


def test_who_runs_the_other_blocks_is_known():
    unused = {*ELSEWHERE}
    for block in others():
        page = block.place.partition(":")[0]
        keys = {k for k in ELSEWHERE if k[0] == page and block.text.startswith(k[1])}
        assert len(keys) == 1, f"{block.place}: say in ELSEWHERE who runs this block"
        unused -= keys
    assert unused == set()
    assert all((ROOT / by).exists() for by in ELSEWHERE.values() if by.startswith(("tests", ".ci")))


@pytest.mark.parametrize("line", [*commands()])
def test_a_command_is_one_that_raysim_takes(line: str, monkeypatch: pytest.MonkeyPatch):
    """With its options and settings, as `raysim submit` checks it, where its files are there."""
    monkeypatch.setattr(submitted, "_check_folder", lambda *given: None)
    monkeypatch.chdir(ROOT)
    _, name, *words = shlex.split(line.partition(" > ")[0])
    group = typer.main.get_group(app)
    command = group.commands[name]
    for folder in [words.pop(0)] if hasattr(command, "commands") else []:
        command = command.commands[folder]
    options = command.make_context(name, words).params
    if name in submitted.CHECKS and not any(own in line for own in OWN):
        submitted.CHECKS[name](options)
