"""Settings that turn a method into FedAvg do so bit for bit; one client is plain SGD."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import raysim
from raysim.core.rules import Rules
from raysim.core.seeds import stream
from raysim.federation.task import from_task
from raysim.methods.fedavg import FedAvg
from tests.methods import common
from tests.tasks import UNEQUAL, make_settings, make_task


class OutputsScaled(FedAvg):
    """FedAvg on outputs that went through the division by the temperature."""

    temperature: float

    def rules(self):
        return Rules(criterion=lambda view, out, b: b.loss(out.scaled(self.temperature).logits))


FEDAVG = {
    "fedlc": {"method.tau": 0},
    "fedprox": {"method.mu": 0},
    "moon": {"method.mu": 0, "method.projection": None},
}
"""Settings under which a method is FedAvg."""


@pytest.mark.parametrize("method", FEDAVG)
def test_without_strength_a_method_is_fedavg(tmp_path, method):
    common.assert_equals_fedavg(tmp_path, {"method.name": method, **FEDAVG[method]})


def test_temperature_of_1_is_none(tmp_path):
    """Dividing by 1 changes no bit, so the engine leaves it out; by 4 it is T=4, and matters."""
    name = f"{__name__}:OutputsScaled"
    common.assert_equals_fedavg(tmp_path, {"method.name": name, "method.temperature": 1})
    task, scaled = make_task(UNEQUAL), {"method.name": name, "method.temperature": 4}
    divided = raysim.run(make_settings(tmp_path / "divided", **scaled), task)
    hot = raysim.run(make_settings(tmp_path / "hot", **{"local.temperature": 4.0}), task)
    plain = load_file(tmp_path / "plain/model.safetensors")
    for name, found in hot.params.items():
        assert torch.equal(found, divided.params[name])
        assert not torch.equal(found, plain[name])


def test_one_client_is_plain_sgd(tmp_path):
    """To 2^-46 a round: after one round, against the gradients of the same batches."""
    task = make_task((57,))
    result = raysim.run(make_settings(tmp_path, rounds=1, fraction=1.0), task)
    network = from_task(task).network(0)
    x, y = (torch.from_numpy(a) for a in task.clients[0])
    batches = stream(0, "batches", 0, 0, 0)
    for _ in range(2):
        order = torch.from_numpy(batches.permutation(57))
        for rows in order.split(8):
            network.zero_grad()
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            with torch.no_grad():
                for weight in network.parameters():
                    weight.add_(weight.grad, alpha=-0.1)
    for name, expected in network.named_parameters():
        assert (result.params[name].double() - expected.double()).abs().max() <= 2.0**-46
