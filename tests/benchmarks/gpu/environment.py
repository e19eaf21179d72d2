"""Figures of the machine that other figures follow from: a launch, a wait, copies; MPS."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch

from raysim.execution.process import mps_limits
from tests.benchmarks.gpu.results import Emit
from tests.benchmarks.gpu.work import device_of_benchmark

COPIED = 2**27
"""Bytes of a copy."""


def measure(emit: Emit, tiny: bool) -> None:
    """Measure calls and copies."""
    device = device_of_benchmark()
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    x, host = torch.ones(64, 64, device=device), torch.ones(COPIED >> (10 * tiny), dtype=torch.int8)
    there, gigabytes = host.to(device), len(host) / 1e9

    def seconds(call: Callable[[], object], times: int) -> float:
        call()  # a first one may load kernels
        wait()
        begun = perf_counter()
        for _ in range(times):
            call()
        wait()
        return (perf_counter() - begun) / times

    row = {
        "launch, us": 1e6 * seconds(partial(x.add_, 1), 2000 >> (6 * tiny)),
        "wait for a value, us": 1e6 * seconds(x[0, 0].item, 500 >> (6 * tiny)),
        "to the device, GB/s": gigabytes / seconds(partial(host.to, device), 3),
        "to the host, GB/s": gigabytes / seconds(there.cpu, 3),
        "MPS": "on" if mps_limits(1.0) else "off",
        "its daemon": shutil.which("nvidia-cuda-mps-control") or "not installed",
    }
    emit([row])
