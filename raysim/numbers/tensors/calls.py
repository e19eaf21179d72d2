"""Calls of a network at given tensors, and its structure, which has none.

A tensor that a network has under several names, as a tied weight, is one tensor in both.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from raysim.numbers.tensors.base import is_base
from raysim.numbers.tensors.sets import Tensors


def call_at(network: nn.Module, tensors: Tensors, x: Tensor) -> Any:
    """Return a network's outputs for inputs x at given tensors.

    Args:
        network: The network; its own tensors are not read.
        tensors: All its parameters and buffers; shared ones by at least one of their names.
        x: The inputs, which the network may change.

    Raises:
        RuntimeError: tensors are missing, or do not belong to the network.
    """
    return functional_call(network, dict(tensors), (x,), strict=True)


def structure_of(network: nn.Module) -> nn.Module:
    """Return a copy of a network in evaluation mode, without values."""
    kept: dict[int, Any] = {}
    for tensor in (*network.parameters(), *network.buffers()):
        empty: Any = tensor.detach().to("meta")
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, tensor.requires_grad)
        if is_base(tensor):
            empty.__class__ = type(tensor)
        kept[id(tensor)] = empty
    return copy.deepcopy(network, kept).eval()
