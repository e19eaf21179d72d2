"""Weight layers of a network, in forward order.

A weight layer is a fully connected, convolutional, recurrent or embedding module whose weights are
trained. Modules are taken in definition order across the stages `features`, `hidden` and `head`,
which is the forward order of a chain. Tensors of any other module (a normalisation) belong to the
layer before it, or to the first layer if there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torch import nn

from raysim.numbers.tensors import is_base, state_of

STAGES = ("features", "hidden", "head")
CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
WEIGHT_LAYERS = (nn.Linear, *CONVOLUTIONS, nn.RNNBase, nn.Embedding)


@dataclass(frozen=True)
class WeightLayer:
    """Weight layer with its tensors, and the tensors of the modules that follow it.

    Attributes:
        path: Path of its module in the network, for example "features.0".
        module: The module.
        weights: Names of its own weights, without biases.
        parameters: Names of all parameters that belong to it.
        buffers: Names of all buffers that belong to it.
        others: Paths of the other modules that have some of the tensors.
    """

    path: str
    module: nn.Module
    weights: tuple[str, ...]
    parameters: list[str] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def weight_layers(network: nn.Module) -> list[WeightLayer]:
    """Return the weight layers of a network with three stages, in forward order."""
    layers: list[WeightLayer] = []
    early: list[tuple[str, nn.Module]] = []  # with tensors, before the first weight layer
    shared = {parameter: name for name, parameter in network.named_parameters()}
    for path, module in _modules(network):
        weights: tuple[str, ...] = ()
        if isinstance(module, WEIGHT_LAYERS):
            params = module.named_parameters(recurse=False)
            trained = [p for name, p in params if name.startswith("weight") and not is_base(p)]
            weights = tuple(shared[p] for p in trained)
        if weights:
            layers.append(WeightLayer(path, module, weights))
            _add(layers[-1], path, module)
        elif layers:
            _add(layers[-1], path, module)
        else:
            early.append((path, module))
    for path, module in early if layers else []:
        _add(layers[0], path, module)
    return layers


def misplaced(network: nn.Module, layers: Iterable[WeightLayer]) -> str | None:
    """Return the name of a tensor that belongs to no layer or to two; None if there is none."""
    placed = [name for layer in layers for name in (*layer.parameters, *layer.buffers)]
    return min(set(state_of(network)).symmetric_difference(placed), default=None)


def _modules(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for stage in STAGES:
        yield from network.get_submodule(stage).named_modules(prefix=stage)


def _add(layer: WeightLayer, path: str, module: nn.Module) -> None:
    parameters = [n for n, p in module.named_parameters(path, recurse=False) if not is_base(p)]
    buffers = [n for n, b in module.named_buffers(path, recurse=False) if not is_base(b)]
    layer.parameters.extend(parameters)
    layer.buffers.extend(buffers)
    if module is not layer.module and (parameters or buffers):
        layer.others.append(path)
