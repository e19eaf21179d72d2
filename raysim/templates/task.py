"""NewTask: your own network and clients, without a dataset, partition or model class.

Run it with `python raysim/templates/task.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import raysim


def make_network() -> nn.Module:
    """Return the network; its weights as built are the first global model."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs [n, 8] and classes [n]; replace them by your own."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (count,), generator=draw)
    return torch.randn(count, 8, generator=draw) + y[:, None] - 0.5, y


def make_task() -> raysim.Task:
    """Return 20 clients of 10 to 48 samples each, and a test set."""
    clients = [samples(10 + 2 * client, seed=client) for client in range(20)]
    return raysim.Task(model=make_network, clients=clients, test=samples(1000, seed=1000))


def make_settings(**overrides: object) -> raysim.Settings:
    """Return the settings: a preset's, with your own in place of some."""
    settings = {"clients": 20, "fraction": 0.5, "rounds": 10, "target_accuracy": None}
    return raysim.load_config("mnist-fedavg", {**settings, **overrides})


if __name__ == "__main__":
    result = raysim.run(make_settings(), task=make_task())
    print(f"accuracy {result.summary['final_accuracy']:.2%}; everything is in {result.run_dir}")
