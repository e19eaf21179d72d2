"""Convolutional networks for MNIST.

Sources: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017, section 3: "two 5x5 convolution layers (the first with 32 channels, the second with
64, each followed with 2x2 max pooling), a fully connected layer with 512 units and ReLu
activation" and 1,663,370 parameters; Yao et al., Two-Stream Federated Learning: Reduce the
Communication Costs, VCIP 2018 (FedMMD), which adds dropout; MIFL's network has 128 units instead.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from raysim.core.data import Model
from raysim.core.errors import SettingsError
from workloads.models.stages import Staged


def _two_convolutions(
    model: Model, shape: tuple[int, ...], classes: int, units: int, dropout: float = 0.0
) -> Staged:
    """Build two 5x5 convolutions (same padding), each pooled by 2, and one layer of `units`."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise SettingsError(
            f"model.name={model.title}: the dataset's inputs have shape {shape}; allowed are"
            " images [channels, height, width] of at least 4x4 pixels"
        )
    channels, height, width = shape
    layers = [nn.Linear(64 * (height // 4) * (width // 4), units), nn.ReLU()]
    return Staged(
        # ReLU after the pooling: the same values and gradients, on a quarter of the activations.
        features=nn.Sequential(
            *(nn.Conv2d(channels, 32, kernel_size=5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(32, 64, kernel_size=5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        ),
        hidden=nn.Sequential(
            nn.Flatten(), *layers, *([nn.Dropout(dropout)] if dropout > 0 else [])
        ),
        head=nn.Sequential(nn.Linear(units, classes)),
    )


class MnistCnn128(Model):
    """MIFL's MNIST network: 128 units before the head."""

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for images [channels, height, width].

        Raises:
            SettingsError: the inputs are no images.
        """
        return _two_convolutions(self, shape, classes, units=128)


class MnistCnn(Model):
    """McMahan's MNIST network, with FedMMD's dropout: 512 units before the head.

    Attributes:
        dropout: Share of the 512 activations that is dropped in training.
    """

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for images [channels, height, width].

        Raises:
            SettingsError: the inputs are no images.
        """
        return _two_convolutions(self, shape, classes, units=512, dropout=self.dropout)
