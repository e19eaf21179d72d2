"""Convolutional networks.

Sources of those for MNIST:
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

Sources of those for CIFAR-10, CIFAR-100 and EMNIST:
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
- Chandran et al., "Weight Divergence Driven Divide-and-Conquer Approach for Optimal Federated
  Learning from non-IID Data", 2021, which takes its models from Wang et al., "Federated Learning
  with Matched Averaging", ICLR 2020 (FedMA): six 3x3 convolutions and three fully connected layers,
  9 weight layers in all. Widths, pooling and dropouts are those of FedMA's public code, which calls
  it `moderate-cnn` and starts it from PyTorch's own weights. These shrink the signal by sqrt(6) a
  layer, and through nine of them SGD at the paper's learning rate does not leave the plateau of
  ln 10: here all layers start as He et al. (2015) do, by fan-in, with zero biases.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field
from torch import nn

from raysim.samples.data import Model
from raysim.workloads.models.parts import (
    DropoutRate,
    convolution,
    dropout_layers,
    fully_connected,
    image_shape,
    start,
)
from raysim.workloads.models.stages import Staged


def _two_convolutions(
    model: Model,
    shape: tuple[int, ...],
    classes: int,
    *,
    units: int,
    outputs: tuple[int, int] = (32, 64),
    dropout: float = 0.0,
    padding: int = 2,
) -> Staged:
    """Build two 5x5 convolutions to `outputs` channels, each pooled by 2; a layer of `units`."""
    lost = 4 - 2 * padding  # of height and width, by each convolution
    channels, *sides = image_shape(model, shape, pixels=4 + 3 * lost)
    height, width = (((side - lost) // 2 - lost) // 2 for side in sides)
    first, last = outputs
    return Staged(
        features=nn.Sequential(
            *convolution(channels, first, kernel=5, padding=padding, pool=nn.MaxPool2d(2)),
            *convolution(first, last, kernel=5, padding=padding, pool=nn.MaxPool2d(2)),
        ),
        hidden=nn.Sequential(
            nn.Flatten(), *fully_connected((last * height * width, units), dropout)
        ),
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
            start(network, partial(nn.init.trunc_normal_, std=0.1, a=-0.2, b=0.2), biases=0.1)
        elif self.initialisation == "xavier_uniform":
            start(network, nn.init.xavier_uniform_)
        return network


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
        start(network, nn.init.xavier_uniform_)
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
        return _two_convolutions(self, shape, classes, units=256, outputs=(10, 20), padding=0)


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
        start(network, nn.init.xavier_uniform_, biases=None)
        return network


class Vgg9(Model):
    """FedMA's VGG9: convolutions of 32, 64 | 128, 128 | 256, 256 channels, 512 and 512 units."""

    dropout: DropoutRate = Field(
        default=0.1, description="dropout rate before the first and after the second 512 units"
    )
    channel_dropout: DropoutRate = Field(
        default=0.05, description="dropout rate of channels after the second pooling"
    )

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for images [channels, height, width].

        Raises:
            SettingsError: the inputs are not images of at least 8x8 pixels.
        """
        channels, height, width = image_shape(self, shape, pixels=8)
        flat = 256 * (height // 8) * (width // 8)
        network = Staged(
            features=nn.Sequential(
                *_block(channels, 32, 64),
                *_block(64, 128, 128),
                *dropout_layers(self.channel_dropout, nn.Dropout2d),
                *_block(128, 256, 256),
            ),
            hidden=nn.Sequential(
                nn.Flatten(),
                *dropout_layers(self.dropout),
                *(nn.Linear(flat, 512), nn.ReLU()),
                *(nn.Linear(512, 512), nn.ReLU()),
                *dropout_layers(self.dropout),
            ),
            head=nn.Sequential(nn.Linear(512, classes)),
        )
        start(network, nn.init.kaiming_normal_)
        return network


def _block(inputs: int, first: int, second: int) -> list[nn.Module]:
    """Return two 3x3 convolutions (same padding), the second pooled by 2."""
    return [
        *convolution(inputs, first, kernel=3, padding=1),
        *convolution(first, second, kernel=3, padding=1, pool=nn.MaxPool2d(2)),
    ]
