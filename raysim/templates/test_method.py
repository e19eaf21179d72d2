"""Tests of NewMethod: the contract of all methods, and its formula worked out by hand."""

from __future__ import annotations

from pathlib import Path

import torch

import raysim
from raysim.testing import MethodContract

NAME = "raysim.templates.method:NewMethod"


class TestNewMethod(MethodContract):
    """The same bits inline, on actors and resumed; four families of networks; refusals."""

    method = NAME


def test_the_server_goes_a_fraction_of_the_way(tmp_path: Path) -> None:
    """One step of one client on y = w x + b with x = 1 gives the mean; half of it is gone."""
    task = raysim.Task(model=make_network, clients=[([[1.0]], [3.0])], scoring=raysim.REGRESSION)
    settings = {
        "method.name": NAME,
        "method.lr_server": 0.5,
        "clients": 1,
        "fraction": 1.0,
        "rounds": 1,
        "local.epochs": 1,
        "local.lr": 0.1,
        "target_accuracy": None,
        "engine.backend": "inline",
        "out": str(tmp_path / "run"),
    }
    result = raysim.run(raysim.load_config("mnist-fedavg", settings), task)
    # The loss (w + b - 3)^2 has the gradient -6 at 0, so that the client's w and b are 0.6.
    assert {name: tensor.item() for name, tensor in result.params.items()} == {
        "weight": torch.tensor(0.3).item(),
        "bias": torch.tensor(0.3).item(),
    }


def make_network() -> torch.nn.Module:
    """Return a linear network that begins at 0."""
    network = torch.nn.Linear(1, 1)
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    return network
