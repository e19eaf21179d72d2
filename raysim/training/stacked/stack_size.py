"""Size of a stack (`engine.vectorize`), and the division of clients into stacks.

Both follow from settings, network and cohort, so that the stacks, and with them a run's result, are
the same on any machine. Only the size of "auto" depends on the machine: on the memory of the actors
and, unless `engine.actors` sets it, on their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raysim.config import Settings
from raysim.federation.federation import Federation
from raysim.federation.opened import OpenedSamples
from raysim.numbers.arrays import Integers
from raysim.numbers.layers import BATCH_NORMS
from raysim.numbers.tensors import CPU
from raysim.training.network import Network

MAX_STACK = 256
"""Largest stack of "auto": more clients gain nothing once kernels fill the device."""
MODEL_COPIES = 8
"""Parameters, start, gradients, momentum, states of transforms and their temporaries."""
KEPT_COPIES = 4
"""Copies that kept steps of other stacks and passes hold (`KeptSteps`): 3 per client for FedAvg, 7
for SCAFFOLD, 11 for Ditto; `MEMORY_FRACTION` leaves memory for more."""
ACTIVATION_COPIES = 3
"""A layer's output, its gradient, and a kernel's workspace."""
SAMPLE_COPIES = 3
"""A client's samples: decoded, altered for an epoch, and concatenated with other clients'."""
MEMORY_FRACTION = 0.6
"""Fraction of the memory for an actor's tensors that the clients of a stack may take."""


def stack_size(
    settings: Settings,
    federation: Federation,
    module: nn.Module,
    describe: Callable[[], dict[str, Any]],
) -> tuple[int, str | None]:
    """Return the number of clients in a stack, and the reason if the network prevents stacking.

    Args:
        settings: The run's settings.
        federation: Its samples and client indices.
        module: The network.
        describe: Returns the description of the workers; called only for "auto".
    """
    requested = settings.engine.vectorize
    if requested in {0, 1}:
        return 1, None
    if reason := unsupported_reason(module):
        return 1, reason
    if requested != "auto":
        return requested, None
    memories = [actor.get("memory") for actor in describe()["actors"]]
    asked = settings.engine.actors  # an autoscaler may not have started them yet
    if not all(memories):
        return 1, None  # on a CPU, one client at a time is faster
    samples = int(federation.training_sizes.max())
    rows = (
        samples if settings.local.batch_size == "full" else min(settings.local.batch_size, samples)
    )
    x = OpenedSamples(federation, CPU).first(1).x
    actors = len(memories) if asked == "auto" else asked
    per_actor = math.ceil(settings.cohort_size / actors)  # so that every actor has clients
    return min(fitting(module, x, rows, samples, min(memories)), per_actor), None


def unsupported_reason(network: nn.Module) -> str | None:
    """Return why a network's clients cannot be stacked, or None if they can."""
    for name, module in network.named_modules():
        if isinstance(module, nn.RNNBase):
            return f"{type(module).__name__} ({name}) has no batched kernel with weights per client"
        if isinstance(module, BATCH_NORMS) and module.momentum is None:
            return f"{type(module).__name__} ({name}) has no momentum"
    return None


def fitting(module: nn.Module, x: Tensor, rows: int, samples: int, memory: int) -> int:
    """Return the number of clients that fit in `memory` bytes; see `client_bytes`."""
    each = client_bytes(module, x, rows, samples)
    return max(1, min(MAX_STACK, int(MEMORY_FRACTION * memory // each)))


def client_bytes(module: nn.Module, x: Tensor, rows: int, samples: int) -> int:
    """Estimate the bytes that a client of a stack takes in training.

    Args:
        module: The network.
        x: Example of the clients' inputs [1, ...].
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


def stacks_of(clients: Sequence[int], sizes: Integers, size: int) -> list[tuple[int, ...]]:
    """Return stacks of clients with similar numbers of samples [K], the largest first."""
    ordered = sorted(clients, key=lambda client: (-sizes[client], client))
    return [tuple(ordered[start : start + size]) for start in range(0, len(ordered), size)]
