"""Tests of trainers watch those of a run, of which its rehearsal would have one more."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _unrehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs start without a rehearsal."""
    monkeypatch.setattr("raysim.driver.start.start.rehearse", lambda checked: 0)
