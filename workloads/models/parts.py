"""Building blocks of models: convolutions, fully connected layers, dropout, shape checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from raysim.errors import SettingsError
from raysim.samples.data import Model

DropoutRate = Annotated[float, Field(ge=0, lt=1)]
"""Fraction of activations that dropout sets to zero in training."""


def unsuitable(model: Model, shape: tuple[int, ...], allowed: str) -> SettingsError:
    """Return the error of a model that does not support inputs of `shape`."""
    return SettingsError(
        f"model.name={model.title}: the dataset's inputs have shape {shape}; allowed are {allowed}"
    )


def image_shape(model: Model, shape: tuple[int, ...], pixels: int) -> tuple[int, int, int]:
    """Return the channels, height and width of images with at least `pixels` on a side.

    Raises:
        SettingsError: the inputs are not such images.
    """
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < pixels:
        allowed = f"images [channels, height, width] of at least {pixels}x{pixels} pixels"
        if len(shape) == 2:
            allowed += "; of grey ones in a file, save bytes (uint8), or arrays [n, 1, H, W]"
        raise unsuitable(model, shape, allowed)
    channels, height, width = shape
    return channels, height, width


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    padding: int,
    *,
    pool: nn.Module | None = None,
    bias: bool = True,
) -> list[nn.Module]:
    """Return a convolution, its pooling if any, and ReLU."""
    layer = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=bias)
    # ReLU after the pooling: the same values and gradients, on a quarter of the activations.
    return [layer, *([pool] if pool else []), nn.ReLU()]


def fully_connected(widths: Sequence[int], dropout: float = 0.0) -> list[nn.Module]:
    """Return layers from each width to the next, each with ReLU and dropout."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), *dropout_layers(dropout)]
    return layers


def dropout_layers(rate: float, kind: type[nn.Module] = nn.Dropout) -> list[nn.Module]:
    """Return a dropout layer; no layer if the rate is 0, so that nothing is drawn."""
    return [kind(rate)] if rate > 0 else []


def start(
    network: nn.Module, weights: Callable[[Tensor], Tensor], biases: float | None = 0.0
) -> None:
    """Start convolutions and linear layers by a function of torch's `nn.init`.

    Args:
        network: Network that is changed.
        weights: Fills the weights of a layer.
        biases: Value of all biases; None: they stay as they are.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            weights(layer.weight)
            if biases is not None:
                nn.init.constant_(layer.bias, biases)  # type: ignore[arg-type]
