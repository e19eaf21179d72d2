"""The model that a client deploys, exported from the last checkpoint of a run."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import raysim
from raysim.cli.app import main
from raysim.storage.client_states import ClientStates
from raysim.testing.tasks import SmallNet
from tests.driver.test_client_evaluation import ALL, BABU, DITTO, first_model, parts_of
from tests.driver.test_same_bits import PREPARED
from tests.tasks import UNEQUAL, Notes, make_settings, make_task

CPU = torch.device("cpu")


def accuracy(tensors: Any, settings: Any, client: int) -> float:
    network, (x, y) = SmallNet(), parts_of(settings, client)["local_test"]
    network.load_state_dict(tensors)
    with torch.no_grad():
        return float(np.mean((network(x).argmax(1) == y).numpy()))


def test_it_is_fine_tuned_where_clients_deploy_that(tmp_path):
    settings = make_settings(tmp_path / "run", **ALL, **BABU)
    result = raysim.run(settings, make_task(UNEQUAL))
    for row in pq.read_table(result.run_dir / "client_accuracy.parquet").to_pylist():
        found = raysim.client_model(result.run_dir, row["client"], make_task(UNEQUAL))
        assert not torch.equal(found["head.weight"], result.params["head.weight"])
        expected = row["personal_local_test_accuracy"]
        assert accuracy(found, settings, row["client"]) == expected


@pytest.mark.parametrize("when", ["before", "after"])
def test_it_is_the_model_that_is_scored_as_the_clients_own(tmp_path, when):
    settings = make_settings(tmp_path / "run", **ALL, **DITTO, **{"evaluation.when": when})
    task = make_task(UNEQUAL)
    result = raysim.run(settings, task)
    states = ClientStates(result.run_dir / "clients")
    before = {p: p.read_bytes() for p in result.run_dir.rglob("*.*") if p.is_file()}
    rows = pq.read_table(result.run_dir / "client_accuracy.parquet").to_pylist()
    for row in rows:
        client, notes = row["client"], Notes()
        found = raysim.client_model(result.run_dir, client, task, notes)
        assert accuracy(found, settings, client) == row["personal_local_test_accuracy"]
        assert f"client {client} took part in {row['participations']} of 3" in notes.notes[-1]
        versions = states.versions(client)
        own = states.read(client, max(versions), CPU)["personal"] if versions else first_model()
        same = all(torch.equal(found[name], own[name]) for name in own)
        assert same == (when == "before")
    assert {p: p.read_bytes() for p in result.run_dir.rglob("*.*") if p.is_file()} == before


def test_of_a_method_without_own_models_it_is_the_global_one(tmp_path):
    task, notes = make_task(UNEQUAL), Notes()
    result = raysim.run(make_settings(tmp_path / "run"), task)
    found = raysim.client_model(result.run_dir, 2, task, notes)
    assert all(torch.equal(found[name], result.params[name]) for name in result.params)
    assert "method.name=fedavg: clients deploy the global model; client 2 took" in notes.notes[-1]


def test_the_command_writes_a_file_for_plain_torch(tmp_path):
    """In a process of its own, which knows no component until the command has it registered."""
    result = raysim.run(make_settings(tmp_path / "run", **PREPARED, rounds=2))
    command = [sys.executable, "-m", "raysim", "export", "run", "--client", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("method.name=fedavg: clients deploy the global model; client 3 took")
    assert second == "model of client 3: client_3.safetensors"
    found = load_file(tmp_path / "client_3.safetensors")
    assert all(torch.equal(found[name], result.params[name]) for name in result.params)


REFUSED = {
    "--client=4: must be from 0 to 3": ["run", "--client", "4"],
    "--out=model.pt: must be a .safetensors file": ["run", "--client", "1", "--out", "model.pt"],
    "--out=run/model.safetensors: is a run's own file": [
        *("run", "--client", "1", "--out", "run/model.safetensors")
    ],
    "--out=link.safetensors: is a run's own file": [
        *("run", "--client", "1", "--out", "link.safetensors")
    ],
    "--out=run/checkpoints/round_000002/state.safetensors: is a run's own file": [
        *("run", "--client", "1", "--out", "run/checkpoints/round_000002/state.safetensors")
    ],
    "there is no config.json": [".", "--client", "1"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_exported_is_refused_in_a_line(tmp_path, monkeypatch, capsys, message):
    monkeypatch.chdir(tmp_path)
    raysim.run(make_settings(tmp_path / "run", **PREPARED, rounds=2))
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "run/model.safetensors")
    monkeypatch.setattr("sys.argv", ["raysim", "export", *REFUSED[message]])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 2 and message in said and said.count("\n") == 1


def test_other_data_than_the_runs_is_refused(tmp_path):
    result = raysim.run(make_settings(tmp_path / "run", **DITTO), make_task(UNEQUAL))
    other = make_task(UNEQUAL)
    other.clients[2][1][0] = (other.clients[2][1][0] + 1) % 3
    with pytest.raises(raysim.RunError, match="is of other data or code: training"):
        raysim.client_model(result.run_dir, 2, other)
    with pytest.raises(raysim.RunError, match="has its own task"):
        raysim.client_model(result.run_dir, 2)
