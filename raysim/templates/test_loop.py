"""Tests of NewLoop: the contract of training loops, and what it leaves."""

from __future__ import annotations

from pathlib import Path

import raysim
from raysim.testing import LoopContract

LOOP = "raysim.templates.loop:train"


class TestNewLoop(LoopContract):
    """The tests that every loop must pass."""

    loop = LOOP


def test_the_loss_falls(tmp_path: Path) -> None:
    """Compare the last loss of the first round with that of the third."""
    contract = TestNewLoop()
    settings = contract.settings_for(tmp_path / "run", {"rounds": 3})
    first, *_, last = raysim.run(settings, contract.task("mlp")).metrics["last_loss"].to_pylist()
    assert last < first
