"""Fixtures: `raysim figure dnc-5` on synthetic samples, with slots in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tuning.common import LocalSlots

SMALL = (
    *("dataset.name=synthetic", "dataset.users=4", "dataset.samples=30", "clients=4"),
    *("dataset.test_samples=20", "partition.name=dirichlet", "model.name=synthetic-mlp"),
    *("local.epochs=1", "fraction=0.5"),
)
Said = tuple[int, str, str]


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> LocalSlots:
    """Have figures use a slot in this process."""
    found = LocalSlots(key=lambda out: out.name)
    monkeypatch.setattr("raysim.tuning.figures.command.open_slots", found.open)
    return found


@pytest.fixture
def figure(slots: LocalSlots, raysim_command: Callable[..., Said]) -> Callable[..., Said]:
    """Run `raysim figure dnc-5 --out out ...`; return exit code, stdout and stderr."""

    def run(*words: str, name: str = "dnc-5", out: str | Path = "out") -> Said:
        return raysim_command("figure", name, "--out", str(out), *SMALL, *words)

    return run
