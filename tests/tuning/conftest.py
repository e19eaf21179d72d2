"""Fixtures of the tests of studies."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def data_root(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path_factory.mktemp("data")))
