"""Fixtures: the command on a table of blobs, with slots in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raysim.workloads.tables import TABLES
from tests.tuning.common import LocalSlots
from tests.tuning.tables.common import NAME, make_table, run_of

Said = tuple[int, str, str]


@pytest.fixture
def drawn() -> None:
    """Ask for the charts of pages, which take half of a command's time."""


@pytest.fixture(autouse=True)
def not_drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the charts of pages, or leave them empty, unless a test asks for them."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("raysim.results.report.drawing.to_svg", lambda *_, **named: "<svg/>")
        for kind in ("curves", "seeds"):
            monkeypatch.setattr(f"raysim.results.report.charts.{kind}", lambda *_: None)


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> LocalSlots:
    """Have tables use a slot in this process."""
    found = LocalSlots(key=run_of)
    for module in ("runs.queue", "tables.tuned"):
        monkeypatch.setattr(f"raysim.tuning.{module}.open_slots", found.open)
    return found


@pytest.fixture
def table(
    slots: LocalSlots,
    raysim_command: Callable[..., Said],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Said]:
    """Run `raysim table blobs-1 --out out ...`; return exit code, stdout and stderr."""
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path))

    def run(*words: str, name: str = NAME) -> Said:
        return raysim_command("table", name, "--out", "out", *words)

    return run
