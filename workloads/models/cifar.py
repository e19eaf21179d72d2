"""Convolutional networks for CIFAR-10, CIFAR-100 and EMNIST.

Sources:
- Uddin et al., "Mutual Information Driven Federated Learning", IEEE TPDS 2021 (MIFL), section 5.1:
  "three 3×3 convolutional layers, a fully connected layer with 64 units involving ReLu activation"
  and 122,570 parameters; "32, 64 and 64 [channels] ... each ... followed by a 2×2 max pooling".
- Chen, Bhardwaj and Marculescu, "FedMAX: Mitigating Activation Divergence for Accurate and
  Communication-Efficient Federated Learning", ECML PKDD 2020, figure 1(b): five convolutions, then
  activations of 512. Channels, pooling, the missing biases and the unpadded last convolution for
  EMNIST are those of the authors' public code.
- Yao et al., "Federated Learning with Additional Mechanisms on Clients to Reduce Communication
  Costs", arXiv:1908.05891, 2019 (FedMMD, FedFusion), section 4.1.1: two 5x5 convolutions of 64
  channels, each followed by ReLU and 3x3 max pooling of stride 2; 384 and 192 units, "each followed
  by a ReLU activation and random dropout". The rate, the padding and the Xavier initialisation
  are those of the authors' public code.
- Lee, Kim and Ko, "Improving Local Training in Federated Learning via Temperature Scaling", 2024
  (FLex&Chill), appendix B.1, table 4.
- Granqvist et al., "pfl-research: Simulation Framework for Accelerating Research in Private
  Federated Learning", NeurIPS 2024: `simple_cnn` of its benchmarks.
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


class CifarCnn3(Model):
    """MIFL's CIFAR-10 network: three 3x3 convolutions, each pooled by 2, and 64 units."""

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for images [channels, height, width].

        Raises:
            SettingsError: the inputs are not images of at least 8x8 pixels.
        """
        channels, height, width = image_shape(self, shape, pixels=8)
        flat = 64 * (height // 8) * (width // 8)
        return Staged(
            features=nn.Sequential(
                *convolution(channels, 32, kernel=3, padding=1, pool=nn.MaxPool2d(2)),
                *convolution(32, 64, kernel=3, padding=1, pool=nn.MaxPool2d(2)),
                *convolution(64, 64, kernel=3, padding=1, pool=nn.MaxPool2d(2)),
            ),
            hidden=nn.Sequential(nn.Flatten(), *fully_connected((flat, 64))),
            head=nn.Sequential(nn.Linear(64, classes)),
        )


class CifarCnn5(Model):
    """FedMAX's network: five 3x3 convolutions without biases, pooled thrice, and 512 units.

    FedMAX's variant for EMNIST, on images padded to 32x32, has `last_padding` 0.
    """

    last_padding: Literal[0, 1] = Field(
        default=1, description="padding of the fifth convolution, in pixels"
    )

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for images [channels, height, width].

        Raises:
            SettingsError: the inputs are not images of at least 8x8 pixels, or 16x16 without the
                last padding.
        """
        channels, height, width = image_shape(self, shape, pixels=8 if self.last_padding else 16)
        lost = 2 - 2 * self.last_padding  # pixels, by the fifth convolution
        flat = 64 * ((height // 4 - lost) // 2) * ((width // 4 - lost) // 2)
        return Staged(
            features=nn.Sequential(
                *_bias_free(channels, 32, pooled=True),
                *_bias_free(32, 64),
                *_bias_free(64, 64, pooled=True),
                *_bias_free(64, 64),
                *_bias_free(64, 64, pooled=True, padding=self.last_padding),
            ),
            hidden=nn.Sequential(nn.Flatten(), *fully_connected((flat, 512))),
            head=nn.Sequential(nn.Linear(512, classes)),
        )


def _bias_free(
    inputs: int, outputs: int, *, pooled: bool = False, padding: int = 1
) -> list[nn.Module]:
    pool = nn.MaxPool2d(2) if pooled else None
    return convolution(inputs, outputs, kernel=3, padding=padding, pool=pool, bias=False)


class CifarCnn2(Model):
    """FedMMD's and FedFusion's CIFAR-10 network: two 5x5 convolutions, 384 and 192 units."""

    dropout: DropoutRate = Field(
        default=0.2, description="dropout rate of the 384 and of the 192 activations"
    )

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for images [channels, height, width].

        Raises:
            SettingsError: the inputs are not images.
        """
        channels, height, width = image_shape(self, shape, pixels=1)
        flat = 64 * -(-height // 4) * -(-width // 4)  # this pooling rounds up
        network = Staged(
            features=nn.Sequential(
                *convolution(channels, 64, kernel=5, padding=2, pool=_overlapping_pool()),
                *convolution(64, 64, kernel=5, padding=2, pool=_overlapping_pool()),
            ),
            hidden=nn.Sequential(nn.Flatten(), *fully_connected((flat, 384, 192), self.dropout)),
            head=nn.Sequential(nn.Linear(192, classes)),
        )
        start_by_xavier(network)
        return network


def _overlapping_pool() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, padding=1)


class FlexChillCnn(Model):
    """FLex&Chill's CIFAR-10 network: two 5x5 convolutions without padding, and 256 units."""

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for images [channels, height, width].

        Raises:
            SettingsError: the inputs are not images of at least 16x16 pixels.
        """
        channels, *sides = image_shape(self, shape, pixels=16)
        height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
        return Staged(
            features=nn.Sequential(
                *convolution(channels, 10, kernel=5, padding=0, pool=nn.MaxPool2d(2)),
                *convolution(10, 20, kernel=5, padding=0, pool=nn.MaxPool2d(2)),
            ),
            hidden=nn.Sequential(nn.Flatten(), *fully_connected((20 * height * width, 256))),
            head=nn.Sequential(nn.Linear(256, classes)),
        )


class PflCnn(Model):
    """pfl-research's CIFAR-10 network: two 3x3 convolutions without padding, and 128 units."""

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for images [channels, height, width].

        Raises:
            SettingsError: the inputs are not images of at least 6x6 pixels.
        """
        channels, *sides = image_shape(self, shape, pixels=6)
        height, width = ((side - 4) // 2 for side in sides)
        network = Staged(
            features=nn.Sequential(
                *convolution(channels, 32, kernel=3, padding=0),
                *convolution(32, 64, kernel=3, padding=0, pool=nn.MaxPool2d(2)),
                nn.Dropout(0.25),
            ),
            hidden=nn.Sequential(
                nn.Flatten(), *fully_connected((64 * height * width, 128), dropout=0.5)
            ),
            head=nn.Sequential(nn.Linear(128, classes)),
        )
        for layer in network.modules():  # biases stay as PyTorch starts them
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
        return network
