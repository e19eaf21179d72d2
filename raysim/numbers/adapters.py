"""Adapters of a network: low-rank changes of frozen weights, as peft's LoRA layers hold them.

    y = W x + s B A x        W frozen, A [r, in], B [out, r], s the scale

An adapted layer is known by its attributes: `base_layer`, and the mappings `lora_A`, `lora_B` and
`scaling`, by the adapter's name. Convolutions count as matrices [out, in * h * w].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from raysim.numbers.tensors import Tensors

DEFAULT = "default"
"""Name of a layer's first adapter."""


@dataclass(frozen=True)
class Adapter:
    """Adapter of one layer, by the names of its tensors.

    Attributes:
        path: Path of the adapted layer in the network.
        a: Name of A.
        b: Name of B.
        weight: Name of W.
        scaling: Name of the scale's buffer, if the network has one (`Scales`).
        scale: s.
        rank: r.
        transposed: Whether W is stored as [in, out], as in GPT-2.
        root: Whether s is alpha by the root of the rank (rsLoRA), not by the rank.
    """

    path: str
    a: str
    b: str
    weight: str
    scaling: str
    scale: float
    rank: int
    transposed: bool
    root: bool

    def scale_at(self, rank: int | Tensor) -> Any:
        """Return s of a client whose adapter has a rank, given the same alpha."""
        ratio = self.rank / rank
        return self.scale * (ratio**0.5 if self.root else ratio)

    def product(self, tensors: Tensors) -> Tensor:
        """Return B A as a matrix [out, in]."""
        return tensors[self.b].flatten(1) @ tensors[self.a].flatten(1)

    def in_weight(self, change: Tensor, weight: Tensor) -> Tensor:
        """Return a change [out, in] in the shape and orientation of W."""
        return (change.T if self.transposed else change).reshape(weight.shape)


class Scales(nn.Module):
    """Scales of a layer's adapters as buffers, so that each client may have its own."""

    def __init__(self, scales: Mapping[str, float]) -> None:
        super().__init__()
        for name, scale in scales.items():
            self.register_buffer(name, torch.tensor(float(scale)), persistent=False)

    def __getitem__(self, name: str) -> Tensor:
        scale: Tensor = getattr(self, name)
        return scale


def adapters_of(network: nn.Module, name: str = DEFAULT) -> tuple[Adapter, ...]:
    """Return the adapters of a name in a network, in definition order."""
    return tuple(_adapter(path, layer, name) for path, layer in adapted_layers(network, name))


def adapted_layers(network: nn.Module, name: str = DEFAULT) -> Iterator[tuple[str, Any]]:
    """Yield the path and the module of each layer that has an adapter of a name."""
    for path, module in network.named_modules():
        if hasattr(module, "base_layer") and name in getattr(module, "lora_A", ()):
            yield path, module


def adapters_beyond_matrices(network: nn.Module) -> str:
    """Return the first layer whose adapter is more or other than A and B; empty if none is.

    The answer says why.
    """
    for path, layer in network.named_modules():
        names = [*getattr(layer, "lora_A", ()), *getattr(layer, "lora_embedding_A", ())]
        if names and hasattr(layer, "base_layer") and (why := _beyond_matrices(layer, names)):
            return f"{path or 'the model'} {why}"
    return ""


def _beyond_matrices(layer: Any, names: Sequence[str]) -> str:
    if DEFAULT not in names:
        return f"has an adapter named {names[0]}, not {DEFAULT}"
    if DEFAULT not in layer.lora_A:
        return "is an embedding"
    if DEFAULT in getattr(layer, "lora_variant", ()):
        return "has a variant of LoRA (such as use_dora)"
    if layer.lora_B[DEFAULT].bias is not None:
        return "has a bias in its adapter (lora_bias)"
    if getattr(layer.base_layer, "groups", 1) > 1:
        return "is a grouped convolution"
    return ""


def _adapter(path: str, layer: Any, name: str) -> Adapter:
    prefix = f"{path}." if path else ""
    return Adapter(
        path,
        f"{prefix}lora_A.{name}.weight",
        f"{prefix}lora_B.{name}.weight",
        f"{prefix}base_layer.weight",
        f"{prefix}scaling.{name}",
        float(layer.scaling[name]),
        len(layer.lora_A[name].weight),
        bool(getattr(layer, "fan_in_fan_out", False)),
        bool(getattr(layer, "use_rslora", {}).get(name)),
    )
