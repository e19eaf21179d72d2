"""Memory of a stack's training against the engine's estimate; memory of a CUDA context.

Counted are two rounds from their beginning, when the network and the samples are on the device:
steps as they are taken, the recording of one as a CUDA graph, and what stays for the next rounds.
A step that is played uses what its recording took, of which the allocator is not told again. The
workspaces of CUDA's libraries are tensors too, which a process has once, whatever its stacks.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import raysim
from raysim.driver.listeners.listener import Started
from raysim.execution.process import CONTEXT_BYTES
from tests.benchmarks.gpu.results import Emit, Row
from tests.benchmarks.gpu.speed import no_room, release, room, stack_of
from tests.benchmarks.gpu.work import Sizes, System, device_of_benchmark
from tests.benchmarks.peers.turns import EndedError
from tests.benchmarks.peers.work import Case

ROUNDS = 2
"""Rounds of a run whose memory is counted."""


class Peak:
    """The most bytes of tensors at a time beyond those at the start.

    The CUDA allocator counts them itself; on a CPU the profiler notes all that is allocated.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin to count."""
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profile.start()

    def end(self) -> int:
        """Stop counting; return the bytes."""
        if self._on_gpu:
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - self._before
        self._profile.stop()
        events: Any = self._profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
        held = most = 0
        for _, change in sorted(changes, key=lambda moment: moment[0]):
            held += change
            most = max(most, held)
        return most


class Counting(raysim.Listener):
    """Counts the bytes of two rounds, and ends the run."""

    def __init__(self, device: torch.device) -> None:
        self.bytes, self.notes = 0, list[str]()
        self._device = device

    def started(self, run: Started) -> None:
        self._peak = Peak(self._device)

    def round_done(self, row: Mapping[str, Any]) -> None:
        if row["round"] == ROUNDS:
            self.bytes = self._peak.end()
            raise EndedError

    def note(self, text: str) -> None:
        self.notes.append(text)


def measure(emit: Emit, networks: Sequence[str], sizes: Sizes) -> None:
    """Count the bytes of stacks of each network, and what CUDA takes beside."""
    rows: list[Row] = []
    device = device_of_benchmark()
    before = used_megabytes()
    for network in networks:
        for stack in sizes.stacks[1:]:
            system = System("raysim", stack=stack, graphs=True)
            case = system.case(network, sizes)
            needed = stack_of(case)
            each = needed.each + needed.fixed // stack
            row: Row = {"network": network, "stack": stack, "estimate": each}
            row["reason"] = no_room(system, case, device)
            if not row["reason"]:
                row |= counted(system, case, device) | fits(case, device)
            emit(rows := [*rows, row])
    if device.type == "cuda" and before is not None:
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        context = total - free - torch.cuda.memory_reserved() - before * 2**20
        emit([*rows, {"context": context, "left_for_it": CONTEXT_BYTES}])


def counted(system: System, case: Case, device: torch.device) -> dict[str, Any]:
    """Return the bytes of a client in a stack's training, or the reason of its failure."""
    release(device)  # what another run has left would be freed while this one is counted
    listener = Counting(device)
    overrides = system.overrides(case, device=device.type == "cuda")
    try:
        with tempfile.TemporaryDirectory() as out:
            settings = raysim.load_config("mnist-fedavg", {**overrides, "out": f"{out}/run"})
            raysim.run(settings, listener=listener)
    except EndedError:
        return {"counted": listener.bytes // system.stack, "notes": listener.notes}
    except raysim.RaysimError as error:
        return {"reason": str(error)}
    return {"reason": "it ended early"}


def fits(case: Case, device: torch.device) -> dict[str, int]:
    """Return the stack that `engine.vectorize=auto` takes on the whole device, and on a quarter."""
    if device.type != "cuda":
        return {}
    needed = stack_of(case)
    alone, of_four = (needed.most(room(device, workers)) for workers in (1, 4))
    return {"auto": alone, "auto_of_four": of_four}


def used_megabytes() -> int | None:
    """Return the memory of the first GPU that all processes use, None where it is not told."""
    command = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
