"""Tests of NewTask: it learns."""

from __future__ import annotations

from pathlib import Path

import raysim
from raysim.templates.task import make_settings, make_task


def test_the_task_learns(tmp_path: Path) -> None:
    """Reach an accuracy that guessing has not."""
    overrides = {"engine.backend": "inline", "out": str(tmp_path / "run")}
    result = raysim.run(make_settings(**overrides), task=make_task())
    assert result.summary["final_accuracy"] > 0.8
