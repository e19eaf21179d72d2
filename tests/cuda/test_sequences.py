"""Language models on sequences of unequal length on the device: as on the CPU, without waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import raysim
from raysim.training.stacked import cuda_graphs
from tests.cuda.device import CudaDevice
from tests.cuda.runs import DISTANCE, NEVER
from tests.cuda.test_budgets import Watch
from tests.driver.test_language_model import BASE, task_of
from tests.tasks import make_settings

MODES: dict[str, dict[str, Any]] = {
    "alone": {},
    "recorded": {},
    "in parts": {"local.accumulate": 2},
    "stack": {"engine.vectorize": 3},
    "graphs": {"engine.vectorize": 3},
}
RECORDING = ("recorded", "in parts", "graphs")


def run(out: Path, watch: Watch | None = None, **own: Any) -> raysim.Result:
    return raysim.run(make_settings(out, **BASE | {"rounds": 3} | own), task_of(), watch)


@pytest.mark.parametrize("mode", MODES)
def test_rounds_are_those_of_the_cpu_without_waits(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(cuda_graphs, "MIN_REPLAYS", 1 if mode in RECORDING else NEVER)
    on_cpu = run(tmp_path / "cpu", **MODES[mode] | {"local.epochs": 6})
    syncs = []
    for epochs in (2, 6):
        with CudaDevice(lines=False) as gpu:
            watch = Watch(gpu)
            own = MODES[mode] | {"local.epochs": epochs, "engine.gpus_per_actor": 1.0}
            on_gpu = run(tmp_path / str(epochs), watch, **own)
        syncs.append(watch.counts[-1]["syncs"] - watch.counts[-2]["syncs"])
    assert mode in RECORDING or syncs[0] == syncs[1]  # a recording waits when it is made
    pairs = [(each, on_gpu.params[name]) for name, each in on_cpu.params.items()]
    assert all(torch.allclose(*pair, rtol=0, atol=DISTANCE) for pair in pairs)
    last = [result.metrics.to_pylist()[-1] for result in (on_cpu, on_gpu)]
    for name in ("test_loss", "test_perplexity", "train_loss"):
        assert last[0][name] == pytest.approx(last[1][name], abs=DISTANCE)
