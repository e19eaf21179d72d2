"""Fixtures: `raysim figure dnc-5` on synthetic samples, with slots in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tuning.common import LocalSlots
from tests.tuning.tables.common import run_of

SMALL = (
    *("dataset.name=synthetic", "dataset.users=4", "dataset.samples=30", "clients=4"),
    *("dataset.test_samples=20", "partition.name=dirichlet", "model.name=synthetic-mlp"),
    *("local.epochs=1", "fraction=0.5"),
)
Said = tuple[int, str, str]


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> LocalSlots:
    """Have figures use a slot in this process."""
    found = LocalSlots(key=run_of)
    monkeypatch.setattr("raysim.tuning.runs.queue.open_slots", found.open)
    return found


@pytest.fixture
def figure(slots: LocalSlots, raysim_command: Callable[..., Said]) -> Callable[..., Said]:
    """Run `raysim figure dnc-5 --out out ...`; return exit code, stdout and stderr."""

    def run(*words: str, name: str = "dnc-5", out: str | Path = "out") -> Said:
        return raysim_command("figure", name, "--out", str(out), *SMALL, *words)

    return run


@pytest.fixture
def heat_maps(slots: LocalSlots, raysim_command: Callable[..., Said]) -> Callable[..., Said]:
    """Run `raysim figure mifl-3 --out out ...`, of two runs that differ in their partition."""
    parted = [word for word in SMALL if not word.startswith("partition.")]

    def run(*words: str, out: str | Path = "out") -> Said:
        changes = (*parted, "dataset.samples=600", *words)
        return raysim_command("figure", "mifl-3", "--out", str(out), *changes)

    return run
