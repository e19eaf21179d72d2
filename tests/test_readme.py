"""README's own method, as it stands there, run by README's own command."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
METHOD = re.search(r"```python\n(\"\"\"FedAvgM.*?)```", README, re.DOTALL)
COMMAND = re.search(r"^raysim (run mnist-fedavg method.name=my_method.*)$", README, re.MULTILINE)
HOSTILE = (
    "cluster/__init__",
    "workloads/__init__",
    "tuning/__init__",
    "platformdirs",
    "safetensors",
)
"""Modules of a user's own, named like packages; importing one of them is the end of a run."""
QUICK = ["rounds=2", "local.epochs=1", "fraction=0.02", "checkpoint_every=1"]


def run(folder: Path, *arguments: str) -> None:
    command = [str(Path(sys.executable).parent / "raysim"), *arguments, *QUICK]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("backend", ["inline", "ray"])
def test_own_method(tmp_path, backend):
    assert METHOD and COMMAND
    assert METHOD[1].count("\n") < 40
    (tmp_path / "my_method.py").write_text(METHOD[1])
    for name in HOSTILE:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} hides a package')")
    run(tmp_path, *shlex.split(COMMAND[1]), f"engine.backend={backend}", "out=mine")
    run(tmp_path, "run", "mnist-fedavg", "engine.backend=inline", "out=plain", "rounds=1")
    first, second = (
        load_file(tmp_path / f"mine/checkpoints/round_00000{n}/state.safetensors") for n in (1, 2)
    )
    plain = load_file(tmp_path / "plain/checkpoints/round_000001/state.safetensors")
    for name, tensor in plain.items():
        assert np.abs(first[name] - tensor).max() < 1e-6  # the first step is FedAvg's
        velocity = name.replace("model/", "v/")
        step = first[name] - second[name]
        assert np.abs(step - second[velocity]).max() < 1e-6


def test_the_two_commands_stand_in_readme():
    commands = re.findall(r"^pip install .*$", README, re.MULTILINE)
    assert commands == [
        "pip install -c constraints.txt . && raysim run mnist-fedavg",
        "pip install -c constraints.txt '.[dev]' && python -m pytest -n 2 --dist worksteal",
    ]
