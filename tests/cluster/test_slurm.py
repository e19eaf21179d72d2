"""The Slurm script, run whole, with stand-ins for Slurm's own commands on one machine."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from raysim.cluster.pages import MANIFESTS
from tests.cluster.head import PATIENCE_SECONDS, SCRIPTS, environment, read_until

SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
[[ $1 == hostname ]] && exec echo 127.0.0.1
exec "$@"
"""
SCONTROL = (
    '#!/usr/bin/env bash\n[[ $* == "show hostnames node[1-2]" ]] && printf "node1\\nnode2\\n"\n'
)


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> dict[str, str]:
    """The environment of a batch job on two nodes."""
    job = random.randrange(10**6, 10**7)
    for path, text in {
        "bin/srun": SRUN,
        "bin/scontrol": SCONTROL,
        "venv/bin/activate": f'export PATH="{SCRIPTS}:$PATH"\n',
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    variables = environment(tmp_path / "none")
    del variables["RAY_AUTH_MODE"], variables["RAY_AUTH_TOKEN_PATH"]
    yield variables | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "RAYSIM_VENV": str(tmp_path / "venv"),
        "RAYSIM_DATA": str(tmp_path / "data"),
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_CPUS_PER_TASK": "1",
    }
    folder = Path(f"/tmp/raysim-{job}")  # noqa: S108
    for each in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in each.info["cmdline"] or ()):
            each.kill()
    shutil.rmtree(folder, ignore_errors=True)


def batch(slurm: dict[str, str], folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [MANIFESTS / "slurm.sh", "run", "my.toml", *words],
        cwd=folder,
        env=slurm,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.full
def test_a_job_on_two_nodes(slurm, working_directory, tmp_path):
    words = ["engine.actors=2", f"out={tmp_path / 'run-%a'}", "seed=%a"]
    job = batch(slurm | {"SLURM_ARRAY_TASK_ID": "7"}, working_directory, *words)
    said, err = job.communicate(timeout=2 * PATIENCE_SECONDS)
    assert job.returncode == 0, err
    assert "2 nodes; dashboard at node1, port" in said
    assert f"everything is in {tmp_path / 'run-7'}" in said
    assert (tmp_path / "run-7/summary.json").exists()
    assert json.loads((tmp_path / "run-7/config.json").read_text())["seed"] == 7
    assert not list(tmp_path.glob(".raysim-token-*"))


@pytest.mark.full
def test_a_job_whose_time_is_up_checkpoints(slurm, working_directory, tmp_path):
    words = ["rounds=100", "checkpoint_every=1000", f"out={tmp_path / 'run'}"]
    job = batch(slurm | {"PAUSE": "1"}, working_directory, *words)
    read_until(job, "round 2 ")
    job.send_signal(signal.SIGTERM)  # to the script alone, as Slurm does
    rest, err = job.communicate(timeout=PATIENCE_SECONDS)
    assert job.returncode == 143, err
    assert f"interrupted; resume with: raysim resume {tmp_path / 'run'}" in rest
    assert list((tmp_path / "run/checkpoints").iterdir())
