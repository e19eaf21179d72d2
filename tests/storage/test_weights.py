"""Files of weights are read, or refused with the line that converts them."""

from __future__ import annotations

import warnings

import pytest
import torch

from raysim.errors import DataError
from raysim.storage.weights import read_weights
from raysim.testing.tasks import SmallNet

CONVERTIBLE = {
    "network": lambda network: network,
    "checkpoint": lambda network: {"epoch": 3, "weights": network.state_dict(), "best": [0.5]},
    "parameters": lambda network: {"weights": dict(network.named_parameters())} | {"optimizer": {}},
}


def saved(path, kind, network):
    if kind == "TorchScript":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated by torch; such files stay
            torch.jit.trace(network, torch.zeros(1, 12)).save(str(path))
    else:
        torch.save(CONVERTIBLE[kind](network), path)
    return path


@pytest.mark.parametrize("kind", [*CONVERTIBLE, "TorchScript"])
def test_the_line_of_the_refusal_converts_the_file(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    network = SmallNet()
    path = saved(tmp_path / "it's.pt", kind, network)
    with pytest.raises(DataError) as refused:
        read_weights(path, "start_from")
    told, _, line = str(refused.value).partition("convert it in Python: ")
    assert told.startswith(f"start_from={path}: ") and "\n" not in line
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch sends archives of TorchScript to torch.jit
        exec(line, {"torch": torch})  # noqa: S102
    read = read_weights(tmp_path / "weights.pth", "start_from")
    for name, tensor in network.state_dict().items():
        assert torch.equal(read[name], tensor) and not read[name].requires_grad


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_any_format_of_torch(tmp_path, zipped):
    tensors = {"w": torch.arange(6.0).reshape(2, 3).T, "n": torch.tensor(3)}
    path = tmp_path / "weights.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=zipped)
    read = read_weights(path, "start_from")
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
