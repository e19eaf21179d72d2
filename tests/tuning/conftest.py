"""Fixtures of the tests of studies."""

from __future__ import annotations

import sqlite3
from functools import partial

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import event
from sqlalchemy.engine import Engine

from raysim.tuning.studies import STUDIES
from tests.cli.test_app import raysim_command
from tests.tuning.common import LocalSlots, make_study
from tests.tuning.postgresql import postgresql

__all__ = ["postgresql", "raysim_command"]


@pytest.fixture(scope="session")
def studies_data(tmp_path_factory):
    """One folder for all tests, so that slots that are left can be used again."""
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def data_root(studies_data, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", studies_data)


@pytest.fixture(scope="session", autouse=True)
def migrations_read_once():
    """Read the history of Optuna's tables once, not for every storage that a test opens."""
    read, kept = ScriptDirectory.from_config, {}

    def once(config):
        folder = config.get_main_option("script_location")
        if folder not in kept:
            kept[folder] = read(config)
        return kept[folder]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", once)
        yield


@pytest.fixture
def local_slots(monkeypatch) -> LocalSlots:
    """Have tuners use slots in this process."""
    slots = LocalSlots()
    monkeypatch.setattr("raysim.tuning.tuner.open_slots", slots.open)
    return slots


@pytest.fixture
def tune(raysim_command, tmp_path, monkeypatch):
    """Run `raysim tune blobs ...` in a fresh folder; return exit code, stdout and stderr."""
    monkeypatch.setitem(STUDIES, "blobs", make_study(tmp_path))
    return partial(raysim_command, "tune", "blobs", "--out", "out")


@event.listens_for(Engine, "connect")
def _write_without_waiting_for_the_disk(connection, _):
    """Do as `os.fsync` of all tests for SQLite, whose calls are not Python's."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")
