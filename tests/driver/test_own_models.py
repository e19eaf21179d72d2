"""Clients that deploy models of their own are evaluated with them."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import raysim
from raysim.federation.evaluation_sets import client_test_set
from raysim.federation.task import from_task
from raysim.storage.client_states import ClientStates
from raysim.testing.tasks import SmallNet
from tests.tasks import UNEQUAL, make_settings, make_task

CPU = torch.device("cpu")


def accuracies(run_dir, task, states, precision):
    """Each client's accuracy with the model in its state, or the first one where it has none."""
    federation = from_task(task)
    test = federation.test
    chosen = client_test_set(federation, make_settings(run_dir))
    first, found = federation.network(0).state_dict(), []
    for position, client in enumerate(chosen.clients.tolist()):
        versions = states.versions(client)
        own = states.read(client, max(versions), CPU)["personal"] if versions else first
        network, rows = SmallNet(), chosen.samples[position]
        network.load_state_dict(own)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, precision == "bf16"):
            predicted = network(torch.from_numpy(test.x[rows])).argmax(1).numpy()
        found.append(float((predicted == test.y[rows]).mean()))
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_client_is_evaluated_with_its_own_model(tmp_path, precision):
    """Ditto's; a client that never took part has the first model."""
    task = make_task(UNEQUAL)
    chosen = {"method.name": "ditto", "evaluation.clients": True, "fraction": 0.4, "rounds": 2}
    chosen["engine.precision"] = precision
    result = raysim.run(make_settings(tmp_path / "run", **chosen), task)
    states = ClientStates(result.run_dir / "clients")
    taken_part = [client for client in range(len(UNEQUAL)) if states.versions(client)]
    assert 0 < len(taken_part) < len(UNEQUAL)
    expected = accuracies(result.run_dir, task, states, precision)
    rows = pq.read_table(result.run_dir / "client_accuracy.parquet").to_pylist()
    assert [row["accuracy"] for row in rows] == pytest.approx(expected)
    mean = result.metrics["client_accuracy_mean"].to_pylist()[-1]
    assert mean == pytest.approx(np.mean(expected))
    plain = {"method.name": "fedavg"}
    shared = raysim.run(make_settings(tmp_path / "plain", **chosen | plain), task)
    others = pq.read_table(shared.run_dir / "client_accuracy.parquet")["accuracy"].to_pylist()
    assert others != [row["accuracy"] for row in rows]
