"""Seconds of an evaluation of 10,000 samples by the samples of a forward pass."""

from __future__ import annotations

import statistics
from time import perf_counter
from unittest import mock

import torch

from raysim.api.rules import Batch
from raysim.training import network as network_module
from raysim.training.network import Network, score
from tests.benchmarks.gpu.results import Emit, Row
from tests.benchmarks.gpu.work import device_of_benchmark
from tests.benchmarks.peers.networks import NETWORKS

CASES = ("2nn", "cifar-cnn-5", "resnet18")
ROWS = (250, 500, 1000, 2000, 5000, 10_000)
TIMES = 5


def measure(emit: Emit, tiny: bool) -> None:
    """Measure evaluations of networks."""
    device, rows = device_of_benchmark(), list[Row]()
    name = "GPU_FORWARD_ROWS" if device.type == "cuda" else "FORWARD_ROWS"
    for network in CASES[:1] if tiny else CASES:
        count = 500 if tiny else ROWS[-1]
        placed = Network(NETWORKS[network].build()).placed(device)
        placed.eval()
        x = torch.rand(count, *NETWORKS[network].shape, device=device)
        samples = Batch(x, torch.zeros(count, dtype=torch.int64, device=device))
        row: Row = {"network": network}
        for most in ROWS:
            with mock.patch.object(network_module, name, most), torch.no_grad():
                seconds = []
                for _ in range(TIMES):
                    begun = perf_counter()
                    score(placed, samples)  # it waits for the device
                    seconds.append(perf_counter() - begun)
            row[f"{most} a pass, ms"] = 1e3 * statistics.median(seconds)
        emit(rows := [*rows, row])
