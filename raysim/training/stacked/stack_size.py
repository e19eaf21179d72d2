"""Size of a stack (`engine.vectorize`), and the division of clients into stacks.

Both follow from settings, network and cohort, so that the stacks, and with them a run's result, are
the same on any machine. Only the size of "auto" depends on the machine: on the memory of the actors
and, unless `engine.actors` sets it, on their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from raysim.config import Settings
from raysim.federation.federation import Federation
from raysim.federation.opened import OpenedSamples
from raysim.numbers.arrays import Integers
from raysim.numbers.layers import BATCH_NORMS
from raysim.numbers.tensors import CPU, base_of, is_base, nbytes
from raysim.training.network import Network
from raysim.training.stacked.convolution import column_bytes

MAX_STACK = 256
"""Largest stack of "auto": more clients gain nothing once kernels fill the device."""
MEMORY_FRACTION = 0.6
"""Fraction of the memory for an actor's tensors that a stack may take; steps of other stacks and
passes that are kept (`KeptSteps`), samples, and gaps in memory take the rest."""

# Copies and bytes below are fitted to the bytes counted on an H200: "Memory of a client in a stack"
# in tests/benchmarks/RESULTS-GPU.md.
STEP_COPIES = 3
"""A client's parameters, as trained and as kept for the next group, and their gradients."""
FINISH_COPIES = 2
"""Copies of the parameters between a client's last step and its upload, when there are no
activations any more."""
ACTIVATION_COPIES = 2.75
"""Outputs of the layers, what else their gradients need, and workspaces of kernels."""
SAMPLE_COPIES = 1.5
"""A client's samples: as they are altered for an epoch, and joined with other clients'."""
STATE_COPIES = 6
"""A client's state in its group, and in the steps that are kept of other stacks and of the first
round, in which all clients have the same one."""
UPLOAD_COPIES = 13
"""Parameters of the one client whose upload is checked and added up, in float64 and int64."""
WORKSPACES = 96 * 2**20
"""Bytes of the workspaces of CUDA's libraries, which a process has once."""


@dataclass(frozen=True)
class StackBytes:
    """Estimate of the memory that the training of a stack takes.

    Attributes:
        fixed: Bytes whatever the number of clients.
        each: Bytes of a client.
    """

    fixed: int
    each: int

    def most(self, memory: int) -> int:
        """Return the number of clients that fit in `memory` bytes, 1 to `MAX_STACK`."""
        return max(1, min(MAX_STACK, int(MEMORY_FRACTION * memory - self.fixed) // self.each))


def stack_size(
    settings: Settings,
    federation: Federation,
    module: nn.Module,
    state: int,
    describe: Callable[[], dict[str, Any]],
) -> tuple[int, str | None]:
    """Return the number of clients in a stack, and the reason if the network prevents stacking.

    Args:
        settings: The run's settings.
        federation: Its samples and client indices.
        module: The network.
        state: Bytes of a client's state.
        describe: Returns the description of the workers; called only for "auto".
    """
    requested = settings.engine.vectorize
    if requested in {0, 1} or settings.local.train or settings.local.accumulate > 1:
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
    slots = len(settings.local.build_optimizer().slots)
    needed = stack_bytes(module, x, rows, samples, slots=slots, state=state)
    actors = len(memories) if asked == "auto" else asked
    per_actor = math.ceil(settings.cohort_size / actors)  # so that every actor has clients
    return min(needed.most(min(memories)), per_actor), None


def unsupported_reason(network: nn.Module) -> str | None:
    """Return why a network's clients cannot be stacked, or None if they can."""
    for name, module in network.named_modules():
        if isinstance(module, nn.RNNBase):
            return f"{type(module).__name__} ({name}) has no batched kernel with weights per client"
        if isinstance(module, BATCH_NORMS) and module.momentum is None:
            return f"{type(module).__name__} ({name}) has no momentum"
        if getattr(module, "gradient_checkpointing", False):
            return f"{type(module).__name__} ({name}) checkpoints activations, which vmap refuses"
    return None


def stack_bytes(
    module: nn.Module, x: Tensor, rows: int, samples: int, *, slots: int = 0, state: int = 0
) -> StackBytes:
    """Estimate the bytes that the training of a stack takes.

    Args:
        module: The network.
        x: Example of the clients' inputs [1, ...].
        rows: Samples in a batch.
        samples: Samples of a client.
        slots: Tensors that the optimizer keeps of each parameter.
        state: Bytes of a client's state.
    """
    outputs: list[tuple[nn.Module, Tensor]] = []

    def note(layer: nn.Module, given: Any, output: Any) -> None:
        tensors = output if isinstance(output, tuple) else (output,)
        outputs.extend((layer, t) for t in tensors if isinstance(t, Tensor))

    leaves = [layer for layer in module.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(note) for layer in leaves]
    with torch.no_grad():
        Network(module).eval()(x.clone())
    for hook in hooks:
        hook.remove()
    activations = sum(output.nbytes for _, output in outputs)
    columns = [column_bytes(layer, output) for layer, output in outputs]  # hooked layers take none
    base = nbytes({"base": base_of(module)})
    model = sum(p.nbytes for p in module.parameters() if not is_base(p))
    data = samples * x.numel() * x.element_size()
    of_sample = ACTIVATION_COPIES * activations + sum(columns) + 2 * max(columns, default=0)
    passing = max(FINISH_COPIES * model, rows * of_sample)
    held = (STEP_COPIES + slots) * model + SAMPLE_COPIES * data + STATE_COPIES * state
    return StackBytes(base + UPLOAD_COPIES * model + WORKSPACES, math.ceil(held + passing))


def stacks_of(clients: Sequence[int], sizes: Integers, size: int) -> list[tuple[int, ...]]:
    """Return stacks of clients with similar numbers of samples [K], the largest first."""
    ordered = sorted(clients, key=lambda client: (-sizes[client], client))
    return [tuple(ordered[start : start + size]) for start in range(0, len(ordered), size)]
