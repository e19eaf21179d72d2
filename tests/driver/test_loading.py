"""`raysim.load` returns the trained network of a run."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import raysim
from raysim.methods.fedavg import FedAvg
from raysim.testing.tasks import SmallNet
from tests.tasks import UNEQUAL, make_settings, make_task

SYNTHETIC = {
    "dataset.name": "synthetic",
    "dataset.users": 5,
    "dataset.samples": 20,
    "partition.name": "iid",
    "model.name": "synthetic-mlp",
    "clients": 5,
    "rounds": 2,
}


@pytest.mark.parametrize("method", ["fedavg", "fedma", "scaffold"])
def test_the_network_of_a_run_of_settings(tmp_path, method):
    """Ready for plain PyTorch; FedMA's has other shapes than the model as it is built."""
    settings = make_settings(tmp_path / "run", **SYNTHETIC, **{"method.name": method})
    result = raysim.run(settings)
    before = torch.random.get_rng_state()
    network = raysim.load(tmp_path / "run")
    assert torch.equal(before, torch.random.get_rng_state())
    assert not network.training
    assert {name: t.tolist() for name, t in network.state_dict().items()} == {
        name: t.tolist() for name, t in load_file(tmp_path / "run/model.safetensors").items()
    }
    x = torch.randn(7, *settings.dataset.shape)
    logits = network(x)
    assert logits.shape == (7, settings.dataset.classes) and logits.requires_grad
    assert json.loads((tmp_path / "run/summary.json").read_text()) == result.summary


@pytest.mark.parametrize("given", [SmallNet, SmallNet()], ids=["function", "module"])
def test_that_of_a_task_of_one_s_own(tmp_path, given):
    raysim.run(make_settings(tmp_path, rounds=1), make_task(UNEQUAL))
    network = raysim.load(tmp_path, given)
    assert isinstance(network, SmallNet)
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(network.state_dict()[name], tensor)


class Grows(FedAvg):
    """FedAvg that repeats the model's hidden units, in a round of its own."""

    changes_shapes = True

    def round(self, now, state):
        reduced = yield self.training_pass(now, state)
        model = dict(reduced.means["model"])
        if now.number == 0:
            for name, axis in {"hidden.0.weight": 0, "hidden.0.bias": 0, "head.weight": 1}.items():
                model[name] = torch.cat([model[name]] * 2, dim=axis)
        return state.replace(model=model), {}


def test_that_of_a_method_that_changes_shapes(tmp_path):
    changes = {"method.name": f"{__name__}:Grows"}
    raysim.run(make_settings(tmp_path, rounds=2, **changes), make_task(UNEQUAL))
    network = raysim.load(tmp_path, SmallNet)
    saved = load_file(tmp_path / "model.safetensors")
    assert saved["head.weight"].shape[1] == 2 * SmallNet().head.weight.shape[1]
    assert all(torch.equal(network.state_dict()[name], saved[name]) for name in saved)
    with pytest.raises(raysim.SettingsError, match=r"another model: tensor bias is missing, here"):
        raysim.load(tmp_path, nn.Linear(12, 3))


def test_what_cannot_be_loaded_is_one_line(tmp_path):
    with pytest.raises(raysim.RunError, match=r"nothing: holds no run: there is no such folder$"):
        raysim.load(tmp_path / "nothing")
    raysim.run(make_settings(tmp_path / "run", rounds=1), make_task(UNEQUAL))
    with pytest.raises(raysim.RunError, match=r"had its own task; raysim.load needs its `mod"):
        raysim.load(tmp_path / "run")
    with pytest.raises(raysim.SettingsError, match=r"another model: tensor bias is missing, here"):
        raysim.load(tmp_path / "run", nn.Linear(12, 3))
