"""Local steps a second of all systems on one network, which train a round each in turn."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from raysim.execution.process import CONTEXT_BYTES
from raysim.training.stacked.stack_size import client_bytes
from tests.benchmarks.gpu.results import Emit, Row
from tests.benchmarks.gpu.systems import BareGraph, BareLoop, InlineRun
from tests.benchmarks.gpu.work import Sizes, System, device_of_benchmark
from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.peers.work import Case, make_data
from tests.benchmarks.runner import Runner, Trains, command_of, take_turns

SWEEPS = 20
"""Rounds of each system that count, at most."""


def compare(
    emit: Emit, network: str, sizes: Sizes, systems: Sequence[System], seconds: float, pfl: str
) -> None:
    """Measure systems beside each other.

    Args:
        emit: Takes the rows so far, one for each system.
        network: The network that all of them train.
        sizes: Samples, batch and stacks.
        systems: The systems; the first is what the others are compared with.
        seconds: Time after which no further sweep begins, once two count.
        pfl: Path of the Python of pfl's environment.
    """
    device = device_of_benchmark()
    with ExitStack() as ends, tempfile.TemporaryDirectory() as folder:
        runners: dict[System, Trains] = {}
        reasons: dict[System, str] = {}
        for system in systems:
            case = system.case(network, sizes)
            if reason := no_room(system, case, device):
                reasons[system] = reason
                continue
            runner = start(system, case, device, Path(folder), pfl)
            runners[system] = runner
            ends.callback(runner.close)
        names = {f"{number} {system}": system for number, system in enumerate(runners)}

        def row_of(system: System, seconds: Sequence[float]) -> Row:
            runner = runners.get(system)
            return {
                "network": network,
                **asdict(system),
                "steps": system.case(network, sizes).cohort * sizes.steps,
                "seconds": seconds,
                "reason": reasons.get(system) or getattr(runner, "failure", ""),
                "notes": getattr(runner, "notes", []),
            }

        def show(seconds: Mapping[str, Sequence[float]]) -> None:
            found = {names[name]: each for name, each in seconds.items()}
            emit([row_of(system, found.get(system, [])) for system in systems])

        turns = {name: runners[system] for name, system in names.items()}
        show(take_turns(turns, SWEEPS, seconds, on_sweep=show))


def start(system: System, case: Case, device: torch.device, folder: Path, pfl: str) -> Any:
    """Start a system."""
    if system.name == "pfl":
        own = folder / f"pfl-{system.workers}"
        own.mkdir()
        make_data(case, own)
        command = command_of("pfl", Path(pfl), system.workers)
        precision = "bf16" if system.bf16 else "fp32"
        return Runner("pfl", command, case, own, {"precision": precision}, gpu=True)
    if system.name == "raysim":
        overrides = system.overrides(case, device=device.type == "cuda")
        if system.workers == 1:
            return InlineRun("mnist-fedavg", overrides, graphs=system.graphs)
        command = [sys.executable, "-m", "tests.benchmarks.gpu.on_ray"]
        title = f"raysim-{system.stack}-{system.graphs}"
        return Runner(title, command, case, folder, overrides, suspended=True, gpu=True)
    kind = BareGraph if system.graphs else BareLoop
    return kind(case, device, bf16=system.bf16)


def no_room(system: System, case: Case, device: torch.device) -> str:
    """Return why stacks do not fit in each worker's share of the device, by the estimate."""
    if device.type != "cuda" or system.stack == 1:
        return ""
    needed, share = system.stack * estimate(case), room(device, system.workers)
    if needed <= share:
        return ""
    return f"no room: about {needed / 2**30:.1f} GiB of {share / 2**30:.1f}"


def room(device: torch.device, workers: int) -> int:
    """Return the bytes that the tensors of each of some workers on a GPU may take."""
    total = torch.cuda.get_device_properties(device).total_memory
    return int(total / workers) - CONTEXT_BYTES


def estimate(case: Case) -> int:
    """Return the bytes of a client of a stack, as the engine estimates them."""
    x = torch.zeros(1, *NETWORKS[case.network].shape)
    return client_bytes(case.build(), x, case.batch, case.samples)
