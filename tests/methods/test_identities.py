"""Settings that turn a method into another do so bit for bit; one client is plain SGD."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import raysim
from raysim.api.rules import Rules
from raysim.federation.task import from_task
from raysim.methods.fedavg import FedAvg
from raysim.methods.fedbuff import FedBuff
from raysim.numbers.seeds import stream
from raysim.testing.tasks import SmallNet
from tests.methods import common
from tests.tasks import UNEQUAL, make_settings, make_task


class OutputsScaled(FedAvg):
    """FedAvg on outputs that went through the division by the temperature."""

    temperature: float

    def rules(self):
        return Rules(criterion=lambda view, out, b: b.loss(out.scaled(self.temperature).logits))


class OnlyBody(FedAvg):
    """FedAvg that trains all but the head."""

    def training_pass(self, now, state):
        body = frozenset(name for name in state.groups["model"] if not name.startswith("head."))
        return replace(super().training_pass(now, state), trainable=body)


class BufferedBody(OnlyBody, FedBuff):
    """FedBuff that trains all but the head."""


def with_fedbabu(name):
    return {"method.name": "chain", "method.methods": {name: {}, "fedbabu": {}}}


BODY, SIZES = f"{__name__}:OnlyBody", (9, 3, 60, 17, 40, 24)
IDENTITIES = {
    "fedper-nothing": ({"method.name": "fedper", "method.own": "none"}, "fedavg", common.Normed),
    "fedper-all": ({"method.name": "fedper", "method.own": "all"}, "local", common.Normed),
    "fedbabu": ({"method.name": "fedbabu"}, BODY, common.Normed),
    "fedbabu-buffered": (with_fedbabu("fedbuff"), f"{__name__}:BufferedBody", common.Normed),
    "fedbn-without": ({"method.name": "fedbn"}, "fedavg", SmallNet),
    "ditto-free": ({"method.name": "ditto", "method.lam": 0.0}, "local", common.Normed),
}
"""Settings, the method that they are, and a network."""


@pytest.mark.parametrize("stacked", [0, 3])
@pytest.mark.parametrize("identity", IDENTITIES)
def test_the_same_by_another_name(tmp_path, identity, stacked):
    """Global model, what clients keep, and what they deploy; at half of unequal clients."""
    given, name, network = IDENTITIES[identity]
    more = {"fraction": 0.5, "local.momentum": 0.9, "evaluation.clients": True}
    more |= {"engine.vectorize": stacked, "local.lr_decay": 0.8, "rounds": 3}
    runs = [
        raysim.run(make_settings(tmp_path / str(number), **more, **each), make_task(SIZES, network))
        for number, each in enumerate((given, {"method.name": name}))
    ]
    own, other = ([*common.newest_states(run.run_dir).items()] for run in runs)
    assert [client for client, _ in own] == [client for client, _ in other]
    for (_, mine), (_, theirs) in zip(own, other, strict=True):
        parts = [{n.partition("/")[2]: t for n, t in state.items()} for state in (mine, theirs)]
        assert parts[0].keys() == parts[1].keys()
        assert all(torch.equal(tensor, parts[1][n]) for n, tensor in parts[0].items())
    deployed = [run.metrics["client_accuracy_mean"].to_pylist() for run in runs]
    assert deployed[0] == deployed[1]
    if identity != "ditto-free":  # whose global model is FedAvg's
        files = [(run.run_dir / "model.safetensors").read_bytes() for run in runs]
        assert files[0] == files[1]


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
    settings = make_settings(tmp_path, rounds=1, fraction=1.0, **{"local.epochs": 2})
    result = raysim.run(settings, task)
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
