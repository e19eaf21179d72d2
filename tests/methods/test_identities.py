"""Settings that turn a method into FedAvg do so bit for bit; one client is plain SGD."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import raysim
from raysim.core.seeds import stream
from raysim.engine.federation import from_task
from tests.conftest import UNEQUAL, make_settings, make_task


@pytest.mark.parametrize(
    "overrides",
    [
        {"method.name": "fedprox", "method.mu": 0},
        {"local.temperature": 1.0},
        {"method.name": "fedprox", "method.mu": 0, "local.temperature": 1},
    ],
)
def test_equals_fedavg_bit_for_bit(tmp_path, overrides):
    task = make_task(UNEQUAL)
    plain = raysim.run(make_settings(tmp_path / "plain"), task)
    other = raysim.run(make_settings(tmp_path / "other", **overrides), task)
    assert (plain.run_dir / "model.safetensors").read_bytes() == (
        other.run_dir / "model.safetensors"
    ).read_bytes()


def test_temperature_is_not_a_no_op(tmp_path):
    task = make_task(UNEQUAL)
    plain = raysim.run(make_settings(tmp_path / "plain"), task)
    hot = raysim.run(make_settings(tmp_path / "hot", **{"local.temperature": 4.0}), task)
    assert not torch.equal(plain.params["head.weight"], hot.params["head.weight"])


def test_one_client_is_plain_sgd(tmp_path):
    """To 2^-46 a round: after one round, against torch.optim.SGD on the same batches."""
    task = make_task((57,))
    result = raysim.run(make_settings(tmp_path, rounds=1, fraction=1.0), task)
    network = from_task(task).network(0)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    x, y = (torch.from_numpy(a) for a in task.clients[0])
    batches = stream(0, "batches", 0, 0, 0)
    for _ in range(2):
        order = torch.from_numpy(batches.permutation(57))
        for rows in order.split(8):
            optimiser.zero_grad()
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            optimiser.step()
    for name, expected in network.named_parameters():
        assert (result.params[name].double() - expected.double()).abs().max() <= 2.0**-46
