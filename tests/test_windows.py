"""What works on Windows, as far as that can be tried without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import raysim
from raysim.cli.options import changes

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[1]
SETTINGS = (
    "method.name=scaffold dataset.name=plane partition.name=dirichlet model.name=linear clients=6"
    " fraction=0.5 target_accuracy=none checkpoint_every=1 engine.backend=inline"
)
MORE = "keep_clients=true trace=true evaluation.clients=true clock.name=devices"
COMMANDS = (
    f"raysim run mnist-fedavg {SETTINGS} {MORE} rounds=3 out=run",
    f"raysim run mnist-fedavg {SETTINGS} rounds=2 out=none --dry-run",
    "raysim resume run rounds=5",
    "raysim compare run",
    "raysim report run -o report.html",
    "raysim list runs .",
    "raysim new method my_method",
    f"raysim run mnist-fedavg {SETTINGS} method.name=my_method:MyMethod rounds=1 out=own",
)


def test_runs_of_one_process_work_with_what_windows_has(tmp_path, monkeypatch):
    """States that are replaced while they are mapped, folders that are renamed, no SIGHUP."""
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.windows", *COMMANDS],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "no run directory is made" in done.stdout
    assert "memory  " not in done.stdout  # unknown there
    assert "report: report.html" in done.stdout and "5/5  finished" in done.stdout
    straight = f"{SETTINGS} rounds=5 out={tmp_path / 'straight'}"
    raysim.run(raysim.load_config("mnist-fedavg", changes(straight.split(), None)))
    models = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("run", "straight")]
    assert models[0] == models[1]
