"""Positions of a network's neurons in its tensors, so that layers can be cut, padded and joined.

A neuron is a row of a fully connected layer, an output channel of a convolution, a dimension of an
embedding or a hidden state of an LSTM. Every dimension of a tensor that runs over neurons of a
layer is a side: a layer's own side, and the input side of the layer after it. Positions along a
side are ordered (outer, neuron, inner): the four gates of an LSTM are outer to its hidden states,
the pixels of a channel, once flattened, are inner to it.

Suitable networks are chains of fully connected layers; of 2-dimensional convolutions, then fully
connected layers; or of an embedding and LSTMs, then fully connected layers. Between them may be
anything without tensors that treats all neurons alike (activations, pooling, dropout, flattening).

Legend: W neurons, A atoms, D weights of a neuron.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysim.numbers.layers import WeightLayer, misplaced, weight_layers
from raysim.numbers.tensors import Tensors

GATES = 4
Kinds = tuple[type[nn.Module], ...]
FOLLOWS: dict[type[nn.Module], Kinds] = {
    nn.Linear: (nn.Linear, nn.Conv2d, nn.LSTM, nn.Embedding),
    nn.Conv2d: (nn.Conv2d,),
    nn.LSTM: (nn.LSTM, nn.Embedding),
    nn.Embedding: (),
}
"""For each kind of layer, the kinds that may come before it."""
INPUTS = {nn.Linear: "in_features", nn.Conv2d: "in_channels", nn.LSTM: "input_size"}
OUTPUTS = {
    nn.Linear: "out_features",
    nn.Conv2d: "out_channels",
    nn.LSTM: "hidden_size",
    nn.Embedding: "embedding_dim",
}


@dataclass(frozen=True)
class Side:
    """Dimension of a tensor that runs over the neurons of a layer.

    Attributes:
        layer: Number of that layer, from 0.
        dim: The dimension.
        outer: Repetitions outside the neurons.
        inner: Positions inside each.
    """

    layer: int
    dim: int
    outer: int = 1
    inner: int = 1

    def positions(self, neurons: Tensor, width: int) -> Tensor:
        """Return the positions of some neurons of `width` along the dimension."""
        outer = torch.arange(self.outer, device=neurons.device)[:, None, None] * width
        inner = torch.arange(self.inner, device=neurons.device)
        return ((outer + neurons.long()[:, None]) * self.inner + inner).reshape(-1)

    def width(self, tensor: Tensor) -> int:
        """Return the number of neurons along the dimension."""
        return tensor.shape[self.dim] // (self.outer * self.inner)


@dataclass(frozen=True)
class Layer:
    """Weight layer of a chain.

    Attributes:
        path: Path of its module in the network.
        width: Number of its neurons as the network was built.
        sides: For each tensor, its sides; the layer's own side comes first. The last layer has no
            side of its own, because its neurons are classes.
    """

    path: str
    width: int
    sides: Mapping[str, tuple[Side, ...]]


Chain = tuple[Layer, ...]


def chain_of(network: nn.Module) -> Chain:
    """Describe the layers of a network.

    Raises:
        ValueError: the network is no suitable chain; the message names the layer.
    """
    layers = weight_layers(network)
    if len(layers) < 2:
        raise ValueError(f"needs a model with at least 2 weight layers; this one has {len(layers)}")
    for layer in layers:
        _check_alone(network, layer)
    if odd := misplaced(network, layers):
        raise ValueError(f"tensor {odd} belongs to no weight layer, or to two")
    if not isinstance(layers[-1].module, nn.Linear):
        raise ValueError(f"the last layer, {_shown(layers[-1])}, must be fully connected")
    chain: list[Layer] = []
    for number, layer in enumerate(layers):
        before = layers[number - 1] if number else None
        sides = _sides(layer, number, _input_side(layer, number, before))
        if number == len(layers) - 1:
            sides = {
                n: tuple(s for s in tensor_sides if s.layer != number)
                for n, tensor_sides in sides.items()
            }
        chain.append(Layer(layer.path, _size(layer.module, OUTPUTS), sides))
    return tuple(chain)


def take(chain: Chain, tensors: Tensors, neurons: Mapping[int, Tensor]) -> dict[str, Tensor]:
    """Cut tensors to some neurons of some layers, in the order given."""
    result = {}
    for name, tensor in tensors.items():
        for side in _sides_of(chain, name):
            if side.layer in neurons:
                index = side.positions(neurons[side.layer], side.width(tensor))
                tensor = tensor.index_select(side.dim, index)  # noqa: PLW2901
        result[name] = tensor
    return result


def place(
    chain: Chain, tensors: Tensors, layer: int, atoms: Tensor, width: int
) -> dict[str, Tensor]:
    """Move the neurons of one layer to their atoms among `width`; other atoms are zero."""
    result = {}
    for name, tensor in tensors.items():
        for side in _sides_of(chain, name):
            if side.layer == layer:
                shape = list(tensor.shape)
                shape[side.dim] = side.outer * width * side.inner
                index = side.positions(atoms, width)
                tensor = tensor.new_zeros(shape).index_copy_(side.dim, index, tensor)  # noqa: PLW2901
        result[name] = tensor
    return result


def rows(chain: Chain, layer: int, tensors: Tensors) -> Tensor:
    """Return input weights and biases [W, D] of a layer's neurons, for their matching.

    The recurrent weights of an LSTM are left out, as both their sides are the layer's own.
    """
    parts = []
    for name, (out, *others) in chain[layer].sides.items():
        if all(side.layer != layer for side in others):
            tensor = tensors[name].movedim(out.dim, 0)
            parts.append(tensor.reshape(out.outer, out.width(tensors[name]), -1).movedim(1, 0))
    return torch.cat([part.reshape(len(part), -1) for part in parts], 1).double()


def join(
    chain: Chain,
    layer: int,
    tensors: Sequence[Tensors],
    atoms: Sequence[Tensor],
    shares: Tensor,
) -> dict[str, Tensor]:
    """Return a layer of atoms: the sum of their members' weights, times a share per atom [A].

    Where a member has no input (of the same layer, in an LSTM) its weight counts as zero.
    """
    totals: dict[str, Tensor] = {}
    for of_client, index in zip(tensors, atoms, strict=True):
        double = {name: tensor.double() for name, tensor in of_client.items()}
        for name, placed in place(chain, double, layer, index, len(shares)).items():
            totals[name] = totals[name].add_(placed) if name in totals else placed
    joined = {}
    for name, total in totals.items():
        side = chain[layer].sides[name][0]
        shape = [1] * total.dim()
        shape[side.dim] = -1
        share = shares.double().repeat_interleave(side.inner).repeat(side.outer).view(shape)
        joined[name] = (total * share).to(tensors[0][name].dtype)
    return joined


def _sides_of(chain: Chain, name: str) -> tuple[Side, ...]:
    return next((layer.sides[name] for layer in chain if name in layer.sides), ())


def _sides(
    layer: WeightLayer, number: int, inputs: tuple[Side, ...]
) -> dict[str, tuple[Side, ...]]:
    """Return the sides of a layer's tensors, its own first."""
    kind = layer.module
    dim, outer = int(isinstance(kind, nn.Embedding)), GATES if isinstance(kind, nn.LSTM) else 1
    side = Side(number, dim, outer)
    sides: dict[str, tuple[Side, ...]] = {}
    for name in layer.parameters:
        key = name.rpartition(".")[2]
        if key.startswith("bias"):
            sides[name] = (side,)
        elif key.startswith("weight_hh"):
            sides[name] = (side, Side(number, 1))
        else:
            sides[name] = (side, *inputs)
    return sides


def _input_side(layer: WeightLayer, number: int, before: WeightLayer | None) -> tuple[Side, ...]:
    """Return the input side of a layer's weights; none for the first layer."""
    if before is None:
        return ()
    if not isinstance(before.module, FOLLOWS[type(layer.module)]):
        raise ValueError(f"layer {_shown(layer)} cannot follow layer {_shown(before)}")
    inputs, width = _size(layer.module, INPUTS), _size(before.module, OUTPUTS)
    inner = inputs // width if isinstance(layer.module, nn.Linear) else 1
    flattened = isinstance(before.module, nn.Conv2d)
    if inputs != inner * width or (inner > 1 and not flattened):
        raise ValueError(
            f"layer {_shown(layer)} has {inputs} inputs, layer {_shown(before)} before it has"
            f" {width} outputs"
        )
    return (Side(number - 1, 1, inner=inner),)


def _check_alone(network: nn.Module, layer: WeightLayer) -> None:
    module = layer.module
    if type(module) not in FOLLOWS:
        raise ValueError(f"layer {_shown(layer)} cannot be matched")
    if layer.others:
        other = network.get_submodule(layer.others[0])
        raise ValueError(f"layer {layer.others[0]} ({type(other).__name__}) cannot be matched")
    if isinstance(module, nn.Conv2d) and module.groups > 1:
        raise ValueError(f"layer {_shown(layer)} has groups={module.groups}; must be 1")
    if isinstance(module, nn.LSTM) and (
        module.num_layers > 1 or module.bidirectional or module.proj_size
    ):
        raise ValueError(
            f"layer {_shown(layer)} must have one layer, one direction and no projection"
        )


def _size(module: nn.Module, names: Mapping[type, str]) -> int:
    return int(getattr(module, names[type(module)]))


def _shown(layer: WeightLayer) -> str:
    return f"{layer.path} ({type(layer.module).__name__})"
