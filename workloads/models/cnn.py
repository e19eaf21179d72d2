"""Convolutional networks for MNIST.

Sources:
- McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
  AISTATS 2017, section 3: "two 5x5 convolution layers (the first with 32 channels, the second with
  64, each followed with 2x2 max pooling), a fully connected layer with 512 units and ReLu
  activation" and 1,663,370 parameters.
- Yao et al., "Federated Learning with Additional Mechanisms on Clients to Reduce Communication
  Costs", arXiv:1908.05891, 2019 (FedMMD, FedFusion), section 4.1.1: "a fully connected layer with
  512 units (with a ReLU activation and random dropout)". The rate, 0.2, is that of its authors'
  public code (repository FedFusion), which starts weights by Glorot and Bengio (AISTATS 2010) and
  biases at 0: initialisation="xavier_uniform". Their earlier paper's code (repository
  TwoStreamFederatedLearning) starts all weights from a normal distribution cut at two deviations of
  0.1, and all biases at 0.1: initialisation="truncated_normal".
- Uddin et al., "Mutual Information Driven Federated Learning", IEEE TPDS 2021 (MIFL), section 5.1:
  the same with 128 units, 454,922 parameters.
- Zhang et al., "PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated Learning
  Library and Benchmark", JMLR 2025: 512 units, no padding, no dropout (`FedAvgCNN` of its code).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from raysim.samples.data import Model
from raysim.workloads.models.parts import (
    DropoutRate,
    convolution,
    fully_connected,
    image_shape,
    start_by_xavier,
)
from raysim.workloads.models.stages import Staged


def _two_convolutions(
    model: Model,
    shape: tuple[int, ...],
    classes: int,
    *,
    units: int,
    dropout: float = 0.0,
    padding: int = 2,
) -> Staged:
    """Build two 5x5 convolutions, each pooled by 2, and one layer of `units`."""
    lost = 4 - 2 * padding  # of height and width, by each convolution
    channels, *sides = image_shape(model, shape, pixels=4 + 3 * lost)
    height, width = (((side - lost) // 2 - lost) // 2 for side in sides)
    return Staged(
        features=nn.Sequential(
            *convolution(channels, 32, kernel=5, padding=padding, pool=nn.MaxPool2d(2)),
            *convolution(32, 64, kernel=5, padding=padding, pool=nn.MaxPool2d(2)),
        ),
        hidden=nn.Sequential(nn.Flatten(), *fully_connected((64 * height * width, units), dropout)),
        head=nn.Sequential(nn.Linear(units, classes)),
    )


class MnistCnn128(Model):
    """MIFL's MNIST network: 128 units before the head."""

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for images [channels, height, width].

        Raises:
            SettingsError: the inputs are not images.
        """
        return _two_convolutions(self, shape, classes, units=128)


class MnistCnn(Model):
    """McMahan's MNIST network, with FedMMD's dropout: 512 units before the head."""

    dropout: DropoutRate = Field(default=0.2, description="dropout rate of the 512 activations")
    initialisation: Literal["torch", "truncated_normal", "xavier_uniform"] = Field(
        default="torch",
        description="first weights: PyTorch's; or normal of deviation 0.1 cut at 0.2, biases 0.1;"
        " or Xavier's, biases 0",
    )
    padding: int = Field(default=2, ge=0, le=2, description="pixels of zeros around each input")

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for images [channels, height, width].

        Raises:
            SettingsError: the inputs are not images.
        """
        network = _two_convolutions(
            self, shape, classes, units=512, dropout=self.dropout, padding=self.padding
        )
        if self.initialisation == "truncated_normal":
            for layer in network.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
                    nn.init.constant_(layer.bias, 0.1)  # type: ignore[arg-type]
        elif self.initialisation == "xavier_uniform":
            start_by_xavier(network)
        return network
