"""The site, built once for all processes of a test run; a reader in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from raysim.workloads.datasets.fetch import data_root
from tests.docs.blocks import ROOT
from tests.docs.reader import Reader

SPHINX = [sys.executable, "-m", "sphinx", "-q", "-E", "-D", "nb_execution_mode=off", "-c", "docs"]
"""Notebooks are run by tests of their own."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, which is built without a warning."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    html, trees = shared / "html", shared / "trees"
    with FileLock(shared / "site.lock"):
        if not html.exists():
            command = [*SPHINX, "-W", "--keep-going", "-d", str(trees), ".", str(html)]
            done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    return html


@pytest.fixture
def reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Reader]:
    """Return a reader in an empty folder, whose modules are forgotten afterwards."""
    monkeypatch.setenv("RAYSIM_DATA", str(data_root()))
    yield Reader(tmp_path, monkeypatch, capsys)
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]
