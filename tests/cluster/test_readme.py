"""The page's commands for each kind of machine: few, and those that can run here do."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import ray

from raysim.cluster.profiles import PROFILES
from tests.cluster.head import PATIENCE_SECONDS, SCRIPTS, Head

PAGE = (Path(__file__).parents[2] / "docs/clusters.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Commands for each machine\n")[1].split("\n## ")[0]
HERE, RAY, KUBERNETES, SLURM = re.findall(r"```\n(.*?)```", SECTION, re.DOTALL)
FULL = pytest.mark.full
QUICK = "rounds=1 local.epochs=1 fraction=0.02"


def do(folder: Path, command: str, **variables: str) -> str:
    """Run a line of the page in a shell; return what it says."""
    environment = {**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}", **variables}
    shell = ["bash", "-euo", "pipefail", "-c", command]
    return subprocess.run(
        shell,
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    ).stdout


def line_with(block: str, text: str) -> str:
    return next(line for line in block.splitlines() if text in line)


def engine_of(run: Path) -> dict[str, object]:
    return json.loads((run / "config.json").read_text())["engine"]


def test_each_kind_of_machine_takes_three_commands_at_most():
    assert len(HERE.splitlines()) == 2  # a laptop's and a GPU machine's
    assert all(1 < len(block.splitlines()) <= 3 for block in (RAY, KUBERNETES, SLURM))


@pytest.mark.parametrize(
    "block",
    [RAY, pytest.param(KUBERNETES, marks=FULL), pytest.param(SLURM, marks=FULL)],
)
def test_the_manifests_are_there(tmp_path, block):
    line = line_with(block, "list manifests")
    do(tmp_path, line)
    (written,) = tmp_path.iterdir()
    manifests = Path(__file__).parents[2] / "cluster/manifests"
    assert written.read_text() == (manifests / line.split()[3]).read_text()


@FULL
def test_on_a_laptop(tmp_path, shared_ray):
    join = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    said = do(tmp_path, f"{line_with(HERE, 'laptop')} {QUICK} out=run", **join)
    assert "round 1  accuracy" in said
    assert engine_of(tmp_path / "run").items() >= {"vectorize": 0, "gpus_per_actor": 0}.items()


@FULL
def test_on_a_machine_with_a_gpu(head: Head, tmp_path):
    line = line_with(HERE, "one-gpu")
    do(tmp_path, f"{line} {QUICK} out=run", **head.environment, RAY_ADDRESS=head.gcs)
    assert engine_of(tmp_path / "run").items() >= {"gpus_per_actor": 1.0}.items()
    actors = json.loads((tmp_path / "run/environment.json").read_text())["actors"]
    assert [actor["gpus"] for actor in actors] == [["0"]]


@FULL
def test_on_a_ray_cluster(head: Head, tmp_path):
    line = line_with(RAY, "raysim submit").replace("/shared", str(tmp_path))
    said = do(tmp_path, f"{line} {QUICK}", **head.environment, RAY_API_SERVER_ADDRESS=head.url)
    assert said.endswith(": succeeded\n")
    assert (tmp_path / "runs/first/summary.json").exists()


def test_the_profiles_named_are_there():
    assert set(re.findall(r"--profile (\S+)", SECTION)) == set(PROFILES)
