"""Fixtures of the tests of studies."""

from __future__ import annotations

import sys

import pytest

from raysim.cli.app import main
from raysim.tuning.studies import STUDIES
from tests.tuning.common import LocalSlots, make_study


@pytest.fixture(scope="session")
def studies_data(tmp_path_factory):
    """One folder for all tests, so that slots that are left can be used again."""
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def data_root(studies_data, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", studies_data)


@pytest.fixture
def local_slots(monkeypatch) -> LocalSlots:
    """Have tuners use slots in this process."""
    slots = LocalSlots()
    monkeypatch.setattr("raysim.tuning.tuner.open_slots", slots.open)
    return slots


@pytest.fixture
def tune(tmp_path, monkeypatch, capsys):
    """Run `raysim tune blobs ...` in a fresh folder; return exit code, stdout and stderr."""
    monkeypatch.setitem(STUDIES, "blobs", make_study(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["raysim", "tune", "blobs", "--out", "out", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
