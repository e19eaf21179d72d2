"""The notebooks of `examples/`: each runs in an empty folder, and is stored without outputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import ray
from nbclient import NotebookClient

from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.models.pretrained.packs import MODELS_FOLDER
from tests.docs.blocks import ROOT

pytestmark = pytest.mark.ci

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
STORED = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""Metadata of a notebook, without the versions of whoever has edited it last."""


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.stem.startswith("2-") else pytest.mark.full)
        for path in NOTEBOOKS
    ],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a dataset that was fetched before, a way to fetch one, or a warning."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / MODELS_FOLDER).symlink_to(data_root() / MODELS_FOLDER)
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    work = tmp_path / "work"
    work.mkdir()
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(work)}}
    NotebookClient(notebook, timeout=900, resources=place).execute()
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", [])]
    assert [each.text for each in outputs if each.get("name") == "stderr"] == []
    assert any("image/svg+xml" in each.get("data", {}) for each in outputs)
    assert str(tmp_path) not in str([each.get("text") for each in outputs])
    check_style(work)


def check_style(work: Path) -> None:
    """Check the modules that a notebook has written; ruff looks into no cell of `%%writefile`."""
    modules = [str(path) for path in work.glob("*.py")]
    options = ["--no-cache", "--config", str(ROOT / "pyproject.toml")]
    for command in (["check"], ["format", "--check"]):
        line = [sys.executable, "-m", "ruff", *command, *options, *modules]
        done = subprocess.run(line, check=False, capture_output=True, text=True, env={**os.environ})
        assert not modules or done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert dict(notebook.metadata) == STORED
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None and not cell.metadata


def test_the_page_of_examples_lists_them():
    page = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 5
    assert [path.name for path in NOTEBOOKS if f"({path.name})" not in page] == []
