"""A round under torch's profiler: calls of CUDA, kernels with most time, the card's busy time."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import torch
from torch.profiler import profile

from tests.benchmarks.gpu.results import Emit, Row
from tests.benchmarks.gpu.runs import Timed, run, work
from tests.benchmarks.gpu.work import System, device_of_benchmark

CASES = (("2nn", 1), ("2nn", 32), ("resnet18", 1), ("resnet18", 8))
"""Networks and stacks."""
ROUND = 4
"""The profiled round, the last one."""
SHOWN = 8
"""Kernels that are named."""


class Profiled(Timed):
    """Profiles a round.

    Attributes:
        profile: The profile.
    """

    profile: Any

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def round_done(self, row: Mapping[str, Any]) -> None:
        if row["round"] == ROUND:
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            self.profile.stop()
        super().round_done(row)
        if row["round"] == ROUND - 1:
            self.profile = profile()
            self.profile.start()
            self.at[-1] = perf_counter()  # it is slow to start


def measure(emit: Emit, tiny: bool) -> None:
    """Profile rounds of clients alone and of stacks."""
    rows: list[Row] = []
    for network, stack in CASES[:1] if tiny else CASES:
        clients, samples = (2, 20) if tiny else (32 if network == "2nn" else 8, 300)
        listener = Profiled(device_of_benchmark())
        system = System("raysim", stack=stack, graphs=True)
        run(system, work(network, clients, samples), ROUND, listener=listener)
        seconds = listener.at[-1] - listener.at[-2]
        events = listener.profile.key_averages()
        busy = sum(map(_microseconds, events)) / 1e6
        calls = {event.key: event.count for event in events if event.key.startswith("cuda")}
        most = sorted(events, key=_microseconds, reverse=True)[:SHOWN]
        row: Row = {"network": network, "stack": stack, "clients": clients, "round, s": seconds}
        row |= {"busy": busy / seconds, "calls": calls}
        row["most, ms"] = {event.key[:60]: round(_microseconds(event) / 1e3, 2) for event in most}
        emit(rows := [*rows, row])


def _microseconds(event: Any) -> float:
    """Return the card's time of an operation itself."""
    return float(getattr(event, "self_device_time_total", 0))
