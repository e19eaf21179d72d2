"""Checks of a GPU before a worker uses it; each error is one line that says what to do."""

from __future__ import annotations

import math
import re
from time import perf_counter, sleep

import torch

from raysim.config import EngineSettings
from raysim.display.units import in_fitting_unit
from raysim.errors import MachineError, SettingsError
from raysim.federation.opened import memory_cap

AMPERE = (8, 0)
"""Compute capability of the first GPUs with TF32 and bfloat16."""
ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")
"""Name of what torch is built for: code of a capability ("sm_90"), or what the driver translates
for later ones ("compute_90"); code of "sm_90a" runs on this capability alone."""
LEAST_FREE = 0.9
"""Fraction of the memory for tensors that must be free; a desktop takes a part of a GPU."""
FREE_SECONDS, PAUSE_SECONDS = 10.0, 0.5
"""Seconds that the memory of a process which has just ended may take to be free."""


def check_architecture(device: torch.device) -> None:
    """Check that torch has kernels for a GPU.

    Raises:
        MachineError: the GPU is too old, or too new, for this build of torch.
    """
    built = [m for name in torch.cuda.get_arch_list() if (m := ARCHITECTURE.fullmatch(name))]
    capability = torch.cuda.get_device_capability(device)
    if built and not any(_runs_on(capability, match) for match in built):
        raise MachineError(
            f"{_named(device)}: torch {torch.__version__} has no kernels for it, but for"
            f" {', '.join(match[0] for match in built)}; install a build of torch that has, or set"
            " engine.gpus_per_actor=0"
        )


def _runs_on(capability: tuple[int, int], match: re.Match[str]) -> bool:
    kind, version, alone = match[1], (int(match[2]), int(match[3])), match[4]
    if kind == "compute":
        return capability >= version
    return capability == version if alone else version[0] == capability[0] and capability >= version


def check_precision(engine: EngineSettings, device: torch.device) -> None:
    """Check that the device computes in `engine.precision`.

    Raises:
        SettingsError: a GPU that is asked for is too old, or is not there.
    """
    precision = engine.precision
    if precision == "tf32" and engine.gpus_per_actor and device.type == "cpu":
        raise SettingsError(
            "engine.precision=tf32: must be fp32 or bf16, as torch can use no GPU here and a CPU"
            " has no TF32"
        )
    if precision == "fp32" or device.type == "cpu":
        return
    if torch.cuda.get_device_capability(device) < AMPERE:
        what = "TF32" if precision == "tf32" else "bfloat16"
        raise SettingsError(
            f"engine.precision={precision}: must be fp32, as {_named(device)} has no {what}; GPUs"
            " of compute capability 8.0 or above have (A100, RTX 30)"
        )


def _named(device: torch.device) -> str:
    """Return a GPU's name and compute capability."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor})"


def check_free_memory(engine: EngineSettings, device: torch.device) -> None:
    """Check that the memory is free for which `engine.vectorize=auto` sizes stacks.

    A size by what is free would let other processes decide the bits of a result.

    Args:
        engine: The engine's settings.
        device: The GPU, whose memory for tensors is capped already.

    Raises:
        MachineError: other processes hold a part of it.
    """
    if engine.vectorize != "auto":
        return
    share, cap = engine.gpus_per_actor, memory_cap(device)
    end = perf_counter() + FREE_SECONDS
    while (free := _free_bytes(device)) < LEAST_FREE * cap:
        if perf_counter() < end:
            sleep(PAUSE_SECONDS)
            continue
        total = torch.cuda.get_device_properties(device).total_memory
        held, wanted, left = (in_fitting_unit(value, "B") for value in (total - free, cap, free))
        fits = math.floor(100 * (share - (cap - free) / total)) / 100
        smaller = f", or set engine.gpus_per_actor={fits:g}" if fits > 0 else ""
        raise MachineError(
            f"engine.gpus_per_actor={share:g}: {held} of the GPU's memory are taken, and {left} are"
            f" free of the {wanted} for which engine.vectorize=auto chooses stacks: end other"
            f" processes that nvidia-smi shows{smaller}, or set engine.vectorize to a number"
        )


def _free_bytes(device: torch.device) -> int:
    """Return the bytes that this process's tensors can take, or have taken already."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
