"""The bare loop of every method.

Those that differ from FedAvg on the server alone (FedAdam), or in which parameters a pass trains
and for how long (divide and conquer, FedMA), or in what stays on a client (FedPer and its kin), add
nothing to its steps: they take FedAvg's in the pass that they are given, and layers that are frozen
have no gradient. FedMA's loop starts from
tensors in which the neurons already have their places, and sends no counts of classes: permutations
and counts are no arithmetic of a step. A chain is the loop of its methods.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from raysim.api.method import Method
from raysim.config import LocalSettings
from raysim.methods.chain import Chain
from tests.benchmarks.bare import terms
from tests.benchmarks.bare.loop import Loop, Term, outputs

TERMS: Mapping[str, type[Term]] = {
    **dict.fromkeys(("fedavg", "fedadam", "divide_and_conquer", "fedma", "fedfusion"), Term),
    **dict.fromkeys(("fedbabu", "fedbn", "fedper", "fedrep", "lg_fedavg", "local"), Term),
    "centralized": Term,
    **dict.fromkeys(("fedprox", "fedasync", "fedat"), terms.Proximal),
    "activation_l2": terms.ActivationNorm,
    "ditto": terms.Personal,
    "fedbuff": terms.Change,
    "feddbe": terms.MeanPull,
    "feddyn": terms.Dynamic,
    "fedlc": terms.Calibrated,
    "fedmax": terms.Entropy,
    "fedmmd": terms.Discrepancy,
    "fednova": terms.MeanStep,
    "fedproto": terms.Prototypes,
    "fedrod": terms.BothHeads,
    "fsvrg": terms.VarianceReduction,
    "mifl": terms.Mutual,
    "moon": terms.Contrast,
    "momentum": terms.Acceleration,
    "scaffold": terms.Control,
    "two_stream_l2": terms.OutputDistance,
}
"""What methods add to plain SGD, but for a chain, which adds what its methods do."""


class Fused(nn.Module):
    """FedFusion's features: the trained ones and the frozen ones, mixed by channel."""

    def __init__(self, features: nn.Module, x: Tensor) -> None:
        """Take a stage, and inputs x [B, ...] that tell the shape of what it gives."""
        super().__init__()
        self.local, self.frozen = features, copy.deepcopy(features).requires_grad_(False)
        shape = outputs(features, x).shape
        self.weighs_maps = len(shape) == 4  # [B, C, height, width]
        self.fusion = nn.Parameter(torch.zeros(shape[1 if self.weighs_maps else -1]))

    def forward(self, x: Tensor) -> Tensor:
        lam = self.fusion.view(-1, 1, 1) if self.weighs_maps else self.fusion
        mixed: Tensor = lam * outputs(self.frozen, x) + (1 - lam) * self.local(x)
        return mixed


def with_fusion(model: nn.Module, x: Tensor) -> nn.Module:
    """Replace the features of a network with fused ones."""
    model.add_module("features", Fused(model.get_submodule("features"), x))
    return model


def with_projection(model: nn.Module, x: Tensor) -> nn.Module:
    """Put MOON's projection of 256 numbers before the head of a network."""
    classes, features = model.get_submodule("head")[0].weight.shape  # type: ignore[index]
    first, second = nn.Linear(features, features), nn.Linear(features, 256)
    added = first, nn.ReLU(), second
    model.add_module("hidden", nn.Sequential(model.get_submodule("hidden"), *added))
    model.add_module("head", nn.Linear(256, classes))
    return model


class TwoHeads(nn.Module):
    """FedRoD's generic head, and one of the client's own."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.generic, self.own = head, copy.deepcopy(head)

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = self.generic(z) + self.own(z.detach())
        return logits


def with_two_heads(model: nn.Module, x: Tensor) -> nn.Module:
    """Put a head of the client's own beside that of a network."""
    model.add_module("head", TwoHeads(model.get_submodule("head")[0]))  # type: ignore[index]
    return model


class Shifted(nn.Module):
    """FedDBE's head behind a shift."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.shift = nn.Parameter(torch.zeros(layer.in_features))
        self.register_buffer("running", torch.zeros(layer.in_features))

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = self.layer(z + self.shift)
        return logits


def with_shift(model: nn.Module, x: Tensor) -> nn.Module:
    """Put a shift of the features before the head of a network."""
    model.add_module("head", Shifted(model.get_submodule("head")[0]))  # type: ignore[index]
    return model


class Prototyped(nn.Module):
    """FedProto's head with prototypes, and with sums of features by class."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        for name in ("means", "sums"):
            self.register_buffer(name, torch.zeros_like(layer.weight.detach()))
        for name in ("known", "seen"):
            self.register_buffer(name, torch.zeros(layer.out_features))
        self.register_buffer("passed", torch.zeros(()))

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = self.layer(z)
        return logits


def with_prototypes(model: nn.Module, x: Tensor) -> nn.Module:
    """Put prototypes beside the head of a network."""
    model.add_module("head", Prototyped(model.get_submodule("head")[0]))  # type: ignore[index]
    return model


WITHOUT = frozenset(
    {
        *("apfl", "fedala", "per_fedavg", "pfedme"),
        *("afl", "dp_ftrl", "drfa", "powersgd", "qffl", "term"),
        *("feddpa", "fedex_lora", "flexlora", "flora", "hetlora", "rolora"),
    }
)
"""Methods without a loop: steps take several gradients, or are FedAvg's, whose change is scaled by
what the server, a clip or a loss says, or sent in factors; or adapters. Oracles: tests/methods."""
NETWORKS: Mapping[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "feddbe": with_shift,
    "fedfusion": with_fusion,
    "fedproto": with_prototypes,
    "fedrod": with_two_heads,
    "moon": with_projection,
}
"""Functions of a network and of inputs x, for methods that change the network."""


def bare_loop(
    name: str, method: Method, local: LocalSettings, model: nn.Module, x: Tensor
) -> Loop | None:
    """Return the loop of a method on a network; None for a method that is not raysim's.

    Args:
        name: That of the method.
        method: Its settings.
        local: Settings of local training.
        model: A network of its own, of the stages of raysim's models.
        x: Some of its inputs [B, ...].
    """
    members = method.methods if isinstance(method, Chain) else {name: method}
    if not members.keys() <= TERMS.keys():
        return None
    for member in members:
        model = NETWORKS[member](model, x) if member in NETWORKS else model
    return Loop(model, local, [partial(TERMS[member], own) for member, own in members.items()])
