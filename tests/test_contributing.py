"""CONTRIBUTING's own pieces, from selection to temperature, as they stand there, in one run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import ray
from safetensors.torch import load

from tests.faults.forked import raysim_command

pytestmark = pytest.mark.ci

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
PIECES = [
    block
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    if re.search(r"\(raysim\.(Selection|Stage|Aggregation|Temperature)\)", block)
]
NAMES = ("selection", "stage", "aggregation", "temperature")
SETTINGS = [
    *("run", "mnist-noniid", "method.name=scaffold", "dataset.name=synthetic"),
    *("dataset.users=8", "dataset.samples=30", "dataset.test_samples=20", "partition.name=iid"),
    *("model.name=synthetic-mlp", "clients=8", "fraction=0.6", "target_accuracy=none"),
    *("local.epochs=1", "checkpoint_every=1", "selection.name=my_selection:Stalest"),
    *("channel.my_stage:RandomK.fraction=0.5", "aggregation.name=my_aggregation:Trimmed"),
    "temperature.name=my_temperature:Cooling",
]


def write_pieces(folder: Path) -> None:
    for name, piece in zip(NAMES, PIECES, strict=True):
        assert piece.count("\n") < 40
        (folder / f"my_{name}.py").write_text(piece)


@pytest.mark.usefixtures("shared_ray")
def test_own_components_in_one_run_on_two_actors_that_is_killed_and_resumed(tmp_path, monkeypatch):
    write_pieces(tmp_path)
    monkeypatch.chdir(tmp_path)
    joined = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    inline = raysim_command(*SETTINGS, "rounds=6", "engine.backend=inline", "out=inline")
    assert inline.code == 0, inline.errors
    actors = [str(Path(sys.executable).parent / "raysim"), *SETTINGS]
    actors += ["rounds=6", "engine.backend=ray", "engine.actors=2", "out=actors"]
    with subprocess.Popen(actors, env=joined, stdout=subprocess.PIPE, text=True) as begun:
        assert begun.stdout
        for line in begun.stdout:  # a line a round
            if (tmp_path / "actors/checkpoints/round_000002").exists() or "round 2" in line:
                begun.send_signal(signal.SIGKILL)
                break
    assert not (tmp_path / "actors/summary.json").exists()
    subprocess.run(actors, env=joined, check=True, capture_output=True)
    models = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("inline", "actors")]
    assert models[0] == models[1]
    values = sum(tensor.numel() for tensor in load(models[0]).values())
    sent = 5 * (4 * values + 8)  # half of the model's values and of those of SCAFFOLD's c
    assert pq.read_table(tmp_path / "actors/metrics.parquet")["bytes_up"].to_pylist() == 6 * [sent]
