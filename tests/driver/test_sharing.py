"""Runs whose clients have shared samples beside their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from safetensors.torch import save_file

import raysim
from raysim.samples.arrow import open_split
from raysim.samples.data import PARTITIONS
from raysim.testing.tasks import SmallNet
from tests.tasks import StopAfter, make_settings, model_of

CLIENTS, PART = 7, 15
PARTITION = {"per_client": 2, "limit": 40, "shared": 30, "shared_portion": 0.5}
OPTIONS: dict[str, Any] = {
    **{"dataset.name": "tests.blobs:Blobs", "model.name": "tests.blobs:Linear"},
    **{"partition.name": "shards", "method.name": "scaffold", "local.lr": 0.02},
    **{f"partition.{key}": value for key, value in PARTITION.items()},
    **{"clients": CLIENTS, "fraction": 0.5, "rounds": 3, "seed": 2},
}


@pytest.fixture(autouse=True)
def data_root(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))


@pytest.fixture
def options(tmp_path):
    save_file(SmallNet().state_dict(), tmp_path / "start.safetensors")
    return OPTIONS | {"start_from": str(tmp_path / "start.safetensors")}


@pytest.mark.usefixtures("resident_actors")
def test_clients_train_on_own_and_shared_samples(tmp_path, options):
    """As on a task whose clients hold both; inline, on actors, and resumed."""
    inline = raysim.run(make_settings(tmp_path / "inline", **options))
    data, test = (open_split(tmp_path / f"data/blobs-{name}.arrow") for name in ("train", "test"))
    indices = PARTITIONS.get("shards").model_validate(PARTITION).client_indices(data, CLIENTS, 2)
    held = [indices[client] for client in range(CLIENTS)]
    assert [len(each) for each in held] == [40 + PART] * CLIENTS
    saved = feather.read_table(tmp_path / "inline/partition.arrow")["samples"].to_pylist()
    assert saved == [rows.tolist() for rows in held]
    clients = [(data.x[rows] / np.float32(2), data.y[rows]) for rows in held]
    task = raysim.Task(SmallNet, clients, (test.x / np.float32(2), test.y))
    alike = raysim.run(make_settings(tmp_path / "task", **options), task)
    actors = {"engine.backend": "ray", "engine.actors": 2}
    raysim.run(make_settings(tmp_path / "actors", **options, **actors))
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "cut", **options), listener=StopAfter(1))
    resumed = raysim.resume(tmp_path / "cut")
    assert {model_of(tmp_path / run) for run in ("actors", "cut", "task")} == {
        model_of(tmp_path / "inline")
    }
    sent, others = (run.metrics["bytes_down"].to_numpy() for run in (inline, alike))
    row = 12 * 4 + 8  # twelve float32 and a label, as they are stored
    assert (sent - others).tolist() == [CLIENTS * PART * row, 0, 0]
    assert resumed.metrics["bytes_down"].to_pylist() == sent.tolist()
    assert inline.summary["bytes_down"] == sent.sum()


def test_other_shared_samples_are_another_run(tmp_path, options):
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "cut", **options), listener=StopAfter(1))
    for key, value in (("shared", 33), ("shared_portion", 0.6)):
        with pytest.raises(raysim.RunError, match=rf"partition.{key}={PARTITION[key]}"):
            raysim.run(make_settings(tmp_path / "cut", **options | {f"partition.{key}": value}))


def test_own_samples_alone_are_held_out(tmp_path, options):
    """Half of 40 a client: 20 of 55 are evaluated, and it trains on 35."""
    settings = make_settings(tmp_path / "run", **options | {"evaluation.holdout": 0.5, "rounds": 1})
    result = raysim.run(settings)
    accuracy = result.metrics["holdout_accuracy"][0].as_py()
    assert accuracy * CLIENTS * 20 == pytest.approx(round(accuracy * CLIENTS * 20), abs=1e-9)
    clients = pq.read_table(tmp_path / "run/clients.parquet")
    assert {*clients["samples"].to_pylist()} == {35}
