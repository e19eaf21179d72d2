"""Fixtures of the tests of studies."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def studies_data(tmp_path_factory):
    """One folder for all tests, so that slots that are left can be used again."""
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def data_root(studies_data, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", studies_data)
