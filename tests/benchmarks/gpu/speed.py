"""Local steps a second of all systems on one network, which train a round each in turn.

Systems that do not fit on the device side by side are measured in groups, one after another, with
those in each of them that the others are compared with.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from raysim.config import EngineSettings
from raysim.execution.process import CONTEXT_BYTES, configure
from raysim.training.stacked.stack_size import StackBytes, stack_bytes
from tests.benchmarks.gpu.results import Emit, Row
from tests.benchmarks.gpu.systems import BareGraph, BareLoop, InlineRun
from tests.benchmarks.gpu.work import Sizes, System, device_of_benchmark
from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.peers.work import Case, make_data
from tests.benchmarks.runner import Runner, Trains, command_of, take_turns

OVER = ("over_first", "over_bare", "over_graph")
"""Ratios of a row: to the first system, the bare loop, and its recorded step."""
SWEEPS = 20
"""Rounds of each system that count, at most."""


def compare(
    emit: Emit,
    network: str,
    sizes: Sizes,
    systems: Sequence[System],
    seconds: float,
    pfl: str,
    no_pfl: str = "",
) -> None:
    """Measure systems beside each other.

    Args:
        emit: Takes the rows so far, one for each system.
        network: The network that all of them train.
        sizes: Samples, batch and stacks.
        systems: The systems; the first is what the others are compared with.
        seconds: Time after which no further sweep begins, once two count.
        pfl: Path of the Python of pfl's environment, or "".
        no_pfl: Why there is none.
    """
    device = device_of_benchmark()
    comparison = Comparison(emit, network, sizes, systems, device)
    for system in systems:
        missing = no_pfl if system.name == "pfl" and not pfl else ""
        reason = missing or no_room(system, comparison.cases[system], device)
        comparison.rows[system]["reason"] = reason
    groups = comparison.groups()
    with configure(engine_of(device, bf16=systems[0].bf16)):  # for all alike, raysim fails or not
        for group in groups:
            comparison.measure(group, seconds / len(groups), pfl)
            release(device)


class Comparison:
    """The systems of a comparison, and a row of each.

    Attributes:
        cases: Their work.
        rows: What is known of them.
    """

    def __init__(
        self,
        emit: Emit,
        network: str,
        sizes: Sizes,
        systems: Sequence[System],
        device: torch.device,
    ) -> None:
        self._emit, self._systems, self._device = emit, systems, device
        self.cases = {system: system.case(network, sizes) for system in systems}
        self.rows: dict[System, Row] = {
            system: {
                "network": network,
                **asdict(system),
                "steps": self.cases[system].cohort * sizes.steps,
                **{key: [] for key in ("seconds", *OVER, "notes")},
            }
            for system in systems
        }

    def groups(self) -> list[list[System]]:
        """Return the systems that can run, in groups that fit on the device side by side."""
        able = [system for system in self._systems if not self.rows[system]["reason"]]
        if self._device.type != "cuda" or not able:
            return [able]
        bases = [s for s in able if s is self._systems[0] or (s.name == "bare" and not s.graphs)]
        one = estimate(self.cases[able[0]])
        left = whole = room(self._device, 1) - sum(needed(system, one) for system in bases)
        groups = [[*bases]]
        for system in able:
            if system in bases:
                continue
            if needed(system, one) > left and len(groups[-1]) > len(bases):
                groups.append([*bases])
                left = whole
            groups[-1].append(system)
            left -= needed(system, one)
        return groups

    def measure(self, group: Sequence[System], seconds: float, pfl: str) -> None:
        """Measure systems side by side."""
        with ExitStack() as ends, tempfile.TemporaryDirectory() as folder:
            runners: dict[str, Trains] = {}
            names = {f"{number} {system}": system for number, system in enumerate(group)}
            for name, system in names.items():
                try:
                    runner = start(system, self.cases[system], self._device, Path(folder), pfl)
                except Exception as error:  # of any kind: the others are still to be measured
                    self.rows[system]["reason"] = f"{type(error).__name__}: {error}"
                    continue
                runners[name] = runner
                ends.callback(runner.close)

            def show(found: Mapping[str, Sequence[float]]) -> None:
                seconds = {names[name]: each for name, each in found.items()}
                for name, system in names.items():
                    if name in runners:
                        self._take(system, seconds, runners[name])
                self._emit([*self.rows.values()])

            show(take_turns(runners, SWEEPS, seconds, on_sweep=show))

    def _take(
        self, system: System, seconds: Mapping[System, Sequence[float]], runner: Trains
    ) -> None:
        """Note the seconds of a system's rounds, and its ratios to those it is compared with."""
        named = {each.name: each for each in seconds}
        bases = self._systems[0], named.get("bare"), named.get("bare, CUDA graph")
        self.rows[system] |= {
            **{over: self._gain(system, b, seconds) for over, b in zip(OVER, bases, strict=True)},
            "seconds": seconds[system],
            "reason": getattr(runner, "failure", ""),
            "notes": getattr(runner, "notes", []),
        }

    def _gain(
        self, system: System, base: System | None, seconds: Mapping[System, Sequence[float]]
    ) -> list[float]:
        """Return the ratios of two systems' steps a second, sweep by sweep."""
        if base is None or base is system or not seconds.get(base):
            return []
        steps = self.rows[system]["steps"] / self.rows[base]["steps"]
        pairs = zip(seconds[system], seconds[base], strict=bool(seconds[system]))
        return [steps * its / own for own, its in pairs]


def engine_of(device: torch.device, *, bf16: bool) -> EngineSettings:
    """Return the settings of a process in which systems are compared."""
    share = 1.0 if device.type == "cuda" else 0.0
    return EngineSettings(gpus_per_actor=share, precision="bf16" if bf16 else "fp32")


def release(device: torch.device) -> None:
    """Give the memory of systems that have ended back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def needed(system: System, one: int) -> int:
    """Return the bytes of a device that a system takes; a client of a stack takes `one`."""
    apart = CONTEXT_BYTES if system.name == "pfl" else 0
    return system.workers * (apart + system.stack * one)


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
        return InlineRun("mnist-fedavg", overrides, graphs=system.graphs)
    kind = BareGraph if system.graphs else BareLoop
    return kind(case, device, bf16=system.bf16)


def no_room(system: System, case: Case, device: torch.device) -> str:
    """Return why a stack does not fit on the device, by the estimate."""
    if device.type != "cuda" or system.stack == 1:
        return ""
    stack, most = stack_of(case), room(device, 1)
    needed = stack.fixed + system.stack * stack.each
    if needed <= most:
        return ""
    return f"no room: about {needed / 2**30:.1f} GiB of {most / 2**30:.1f}"


def room(device: torch.device, workers: int) -> int:
    """Return the bytes that the tensors of each of some workers on a GPU may take."""
    total = torch.cuda.get_device_properties(device).total_memory
    return int(total / workers) - CONTEXT_BYTES


def stack_of(case: Case) -> StackBytes:
    """Return the bytes of a stack, as the engine estimates them."""
    x = torch.zeros(1, *NETWORKS[case.network].shape)
    return stack_bytes(case.build(), x, case.batch, case.samples)


def estimate(case: Case) -> int:
    """Return the bytes of a client of a large stack, as the engine estimates them."""
    return stack_of(case).each
