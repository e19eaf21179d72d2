"""Seconds a round of a published experiment: FedMAX's CIFAR-10 cell of table 1, 3000 rounds.

`fedmax-cifar10-noniid`: cifar-cnn-5, 10 of 100 clients of 500 samples, E=1, B=100, so that a client
takes five steps: they are recorded as a CUDA graph in the third round. Where CIFAR-10 is not there,
random images of the same shape take its place.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysim.execution.process import configure
from raysim.workloads.datasets.fetch import data_root
from tests.benchmarks.gpu.results import Emit
from tests.benchmarks.gpu.speed import SWEEPS, engine_of
from tests.benchmarks.gpu.systems import InlineRun
from tests.benchmarks.gpu.work import MODULE, System, device_of_benchmark, unevaluated
from tests.benchmarks.runner import take_turns

PRESET = "fedmax-cifar10-noniid"
COHORT = 10
FETCH_SECONDS = 60.0


def systems() -> dict[str, tuple[System, dict[str, Any]]]:
    """Return what is compared: systems, and settings of their own."""
    stacked = System("raysim", stack=COHORT, graphs=True)
    return {
        "one client at a time": (System("raysim"), {}),
        "the cohort as one stack": (stacked, {}),
        "the stack, evaluated every round": (stacked, {"evaluation.every": 1}),
        "the stack in bf16": (replace(stacked, bf16=True), {}),
    }


def measure(emit: Emit, seconds: float, tiny: bool) -> None:
    """Measure rounds of the cell by each system."""
    device = device_of_benchmark()
    data: dict[str, Any] = {}
    if tiny or not has_cifar10():
        data = {"dataset.name": f"{MODULE}:RandomCifar10", "dataset.augmented": True}
    few = {"dataset.samples": 400, "local.batch_size": 2, "fraction": 0.02} if tiny else {}
    gpus = {"engine.backend": "inline", "engine.gpus_per_actor": 1.0}
    with configure(engine_of(device, bf16=False)) as ends:  # for all alike, the first fails or not
        runs: dict[str, InlineRun] = {}
        for name, (system, own) in systems().items():
            settings = {**unevaluated(), **gpus, **data, **few, **own}
            settings |= system.engine(device=device.type == "cuda")
            runs[name] = InlineRun(PRESET, settings, graphs=system.graphs)
            ends.callback(runs[name].close)

        def show(found: Mapping[str, Sequence[float]]) -> None:
            emit(
                [
                    {
                        "system": name,
                        "seconds": each,
                        "reason": runs[name].failure,
                        "random": bool(data),
                    }
                    for name, each in found.items()
                ]
            )

        show(take_turns(runs, SWEEPS, seconds, on_sweep=show))


def has_cifar10() -> bool:
    """Return whether CIFAR-10 is there, or could be fetched within a minute."""
    if (data_root() / "cifar10" / "prepared").exists():
        return True
    command = [sys.executable, "-m", "raysim", "data", "fetch", "cifar10"]
    try:
        subprocess.run(command, check=True, stdout=sys.stderr, timeout=FETCH_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
