"""README's own method, as it stands there, run by README's own command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest
import ray
from safetensors.numpy import load_file

import raysim.testing
from raysim.config import parse_override

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
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


@pytest.fixture
def environment(shared_ray: None) -> dict[str, str]:
    """Variables of a user's shell; commands join the Ray of the tests, which is there already."""
    return {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}


def run(folder: Path, environment: dict[str, str], *arguments: str) -> None:
    command = [str(Path(sys.executable).parent / "raysim"), *arguments, *QUICK]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


@pytest.mark.ci
@pytest.mark.parametrize("backend", ["inline", pytest.param("ray", marks=pytest.mark.full)])
def test_own_method(tmp_path, request, backend):
    environment = {**os.environ}
    if backend == "ray":
        environment = request.getfixturevalue("environment")
    assert METHOD and COMMAND
    assert METHOD[1].count("\n") < 40
    (tmp_path / "my_method.py").write_text(METHOD[1])
    for name in HOSTILE:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} hides a package')")
    run(tmp_path, environment, *shlex.split(COMMAND[1]), f"engine.backend={backend}", "out=mine")
    quick = dict(map(parse_override, [*QUICK, "engine.backend=inline", "rounds=1"]))
    raysim.run(raysim.load_config("mnist-fedavg", {**quick, "out": str(tmp_path / "plain")}))
    first, second = (
        load_file(tmp_path / f"mine/checkpoints/round_00000{n}/state.safetensors") for n in (1, 2)
    )
    plain = load_file(tmp_path / "plain/checkpoints/round_000001/state.safetensors")
    for name, tensor in plain.items():
        assert np.abs(first[name] - tensor).max() < 1e-6  # the first step is FedAvg's
        velocity = name.replace("model/", "v/")
        step = first[name] - second[name]
        assert np.abs(step - second[velocity]).max() < 1e-6


@pytest.mark.full
@pytest.mark.parametrize("actors", [False, True])
def test_own_method_is_held_to_the_contract_as_its_page_says(tmp_path, request, actors):
    """In a folder of its own, by pytest as a user calls it."""
    example = re.search(
        r"\n\n(    from raysim.testing.*?)\n\n\S", raysim.testing.__doc__, re.DOTALL
    )
    assert METHOD and example
    (tmp_path / "my_method.py").write_text(METHOD[1])
    (tmp_path / "test_my_method.py").write_text(textwrap.dedent(example[1]))
    tests = [name for name in dir(raysim.testing.MethodContract) if name.startswith("test_")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = request.getfixturevalue("environment") if actors else None
    if not actors:
        command += ["-k", "not actors"]
        tests = [name for name in tests if "actors" not in name]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and f"{len(tests)} passed" in done.stdout, done.stdout


def test_the_two_commands_stand_in_readme():
    commands = re.findall(r"^pip install .*$", README, re.MULTILINE)
    assert commands == [
        "pip install -c constraints.txt . && raysim run mnist-fedavg",
        "pip install -c constraints.txt '.[dev]' && python -m pytest -n 2 --dist worksteal",
    ]


def test_ci_runs_what_the_command_leaves_out():
    own = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert own["tool"]["pytest"]["ini_options"]["addopts"].endswith("-m 'not full and not ci'")
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert 'run "$tests"' in ci and "python -m pytest -m 'ci and not full'" in ci
