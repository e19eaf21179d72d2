"""VGG9, the network of Divide-and-Conquer for CIFAR-10.

Sources: Chandran et al., "Weight Divergence Driven Divide-and-Conquer Approach for Optimal
Federated Learning from non-IID Data", 2021, which takes its models from Wang et al., "Federated
Learning with Matched Averaging", ICLR 2020 (FedMA): six 3x3 convolutions and three fully connected
layers, 9 weight layers in all. Widths, pooling and dropouts are those of FedMA's public code, which
calls it `moderate-cnn` and starts it from PyTorch's own weights. These shrink the signal by sqrt(6)
a layer, and through nine of them SGD at the paper's learning rate does not leave the plateau of
ln 10: here all layers start as He et al. (2015) do, by fan-in, with zero biases.
"""

from __future__ import annotations

from pydantic import Field
from torch import nn

from raysim.samples.data import Model
from raysim.workloads.models.parts import DropoutRate, convolution, dropout_layers, image_shape
from raysim.workloads.models.stages import Staged


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
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        return network


def _block(inputs: int, first: int, second: int) -> list[nn.Module]:
    """Return two 3x3 convolutions (same padding), the second pooled by 2."""
    return [
        *convolution(inputs, first, kernel=3, padding=1),
        *convolution(first, second, kernel=3, padding=1, pool=nn.MaxPool2d(2)),
    ]
