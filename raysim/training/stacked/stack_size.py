"""Size of a stack (`engine.vectorize`), and which clients share one.

Both follow from settings, network and cohort, so that the groups, and with them a run's result, are
the same wherever it runs. Only the size that "auto" finds depends on the machine: on the memory of
the actors and, unless `engine.actors` says it, on their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysim.config import LocalSettings, Settings
from raysim.core.tensors import CPU
from raysim.federation.federation import Federation
from raysim.federation.opened import OpenedSamples
from raysim.training.network import Network
from raysim.training.stacked.alike import unsupported_reason

MAX_STACK = 256
"""Largest stack of "auto": more clients gain nothing once kernels fill the device."""
MODEL_COPIES = 8
"""Parameters, start, gradients, momentum, states of transforms and their temporaries."""
KEPT_COPIES = 4
"""Those that kept steps of other stacks and passes hold (`KeptSteps`): of FedAvg 3, SCAFFOLD 7,
Ditto 11 a client; what goes beyond is of the memory that `MEMORY_FRACTION` leaves."""
ACTIVATION_COPIES = 3
"""A layer's output, its gradient, and a kernel's workspace."""
SAMPLE_COPIES = 3
"""A client's samples as it sees them, altered for an epoch, and in a row with those of others."""
MEMORY_FRACTION = 0.6
"""Of the memory that an actor's tensors may take, the part for the clients of a stack."""


def stack_size(
    settings: Settings,
    federation: Federation,
    module: nn.Module,
    describe: Callable[[], dict[str, Any]],
) -> tuple[int, str | None]:
    """Return how many clients are stacked, and why no more where the network is the reason.

    Args:
        settings: The run's settings.
        federation: Its samples and client indices.
        module: The network.
        describe: Returns where the workers are; called only for "auto".
    """
    requested = settings.engine.vectorize
    if requested in {0, 1}:
        return 1, None
    if reason := unsupported_reason(module):
        return 1, reason
    if requested != "auto":
        return requested, None
    memories = [actor.get("memory") for actor in describe()["actors"]]
    asked = settings.engine.actors  # where nodes are started for them, few may be there yet
    if not all(memories):
        return 1, None  # on a CPU clients one at a time are faster
    samples = int(federation.training_sizes.max())
    rows = largest_batch(settings.local, samples)
    x = OpenedSamples(federation, CPU).first(1).x
    actors = len(memories) if asked == "auto" else asked
    per_actor = math.ceil(settings.cohort_size / actors)  # so that no actor goes without
    return min(fitting(module, x, rows, samples, min(memories)), per_actor), None


def largest_batch(local: LocalSettings, samples: int) -> int:
    """Return the samples in a batch of a client that has so many."""
    return samples if local.batch_size == "full" else min(local.batch_size, samples)


def fitting(module: nn.Module, x: Tensor, rows: int, samples: int, memory: int) -> int:
    """Return how many clients fit in so many bytes of a device's memory; see `client_bytes`."""
    each = client_bytes(module, x, rows, samples)
    return max(1, min(MAX_STACK, int(MEMORY_FRACTION * memory // each)))


def client_bytes(module: nn.Module, x: Tensor, rows: int, samples: int) -> int:
    """Return the bytes that a client of a stack takes in training, as estimated.

    Args:
        module: The network.
        x: Inputs [1, ...] like those of the clients.
        rows: Samples in a batch.
        samples: Samples of a client.
    """
    activations = 0

    def count(layer: nn.Module, given: Any, output: Any) -> None:
        nonlocal activations
        activations += sum(
            t.numel() * t.element_size()
            for t in (output if isinstance(output, tuple) else (output,))
            if isinstance(t, Tensor)
        )

    leaves = [layer for layer in module.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(count) for layer in leaves]
    with torch.no_grad():
        Network(module).eval()(x.clone())
    for hook in hooks:
        hook.remove()
    model = sum(p.numel() * p.element_size() for p in module.parameters())
    data = samples * x.numel() * x.element_size()
    copies = (MODEL_COPIES + KEPT_COPIES) * model
    return copies + ACTIVATION_COPIES * rows * activations + SAMPLE_COPIES * data


def stacks_of(
    clients: Sequence[int], sizes: npt.NDArray[np.int64], size: int
) -> list[tuple[int, ...]]:
    """Return stacks of clients of like numbers of samples [K], the largest first."""
    ordered = sorted(clients, key=lambda client: (-sizes[client], client))
    return [tuple(ordered[start : start + size]) for start in range(0, len(ordered), size)]
