"""Checks of a GPU before a worker uses it; each error is one line that says what to do."""

from __future__ import annotations

import math
from time import perf_counter, sleep

import torch

from raysim.config import EngineSettings
from raysim.display.units import in_fitting_unit
from raysim.errors import MachineError
from raysim.federation.opened import memory_cap

LEAST_FREE = 0.9
"""Fraction of the memory for tensors that must be free; a desktop takes a part of a GPU."""
FREE_SECONDS, PAUSE_SECONDS = 10.0, 0.5
"""Seconds that the memory of a process which has just ended may take to be free."""


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
