"""Network for inputs of any shape: a small CNN for images, one hidden layer for everything else."""

from __future__ import annotations

from torch import nn

from raysim.samples.data import Model
from raysim.workloads.models.mlp import SyntheticMlp
from raysim.workloads.models.parts import convolution
from raysim.workloads.models.stages import Staged

LEAST_SIDE = 8
"""Pixels of the shorter side from which on a convolution is added, which halves it."""
CHANNELS = (32, 64)
"""Channels of the first convolution, and of each further one."""
GROUPS = 8
"""Groups of channels that are normalised."""
UNITS = 128


class ByShape(Model):
    """3x3 convolutions for images, until they have under 8 pixels; else 512 hidden units."""

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for images [channels, height, width], or for inputs of any shape."""
        if len(shape) != 3 or min(shape[1:]) < LEAST_SIDE:
            return SyntheticMlp().build(shape, classes)
        channels, height, width = shape
        layers: list[nn.Module] = []
        while min(height, width) >= LEAST_SIDE:
            outputs = CHANNELS[1 if layers else 0]
            pool = nn.Sequential(nn.GroupNorm(GROUPS, outputs, affine=False), nn.MaxPool2d(2))
            layers += convolution(channels, outputs, kernel=3, padding=1, pool=pool)
            channels, height, width = outputs, height // 2, width // 2
        flat = channels * height * width
        return Staged(
            features=nn.Sequential(*layers),
            hidden=nn.Sequential(
                nn.Flatten(),
                nn.Linear(flat, UNITS),
                nn.LayerNorm(UNITS, elementwise_affine=False),
                nn.ReLU(),
            ),
            head=nn.Sequential(nn.Linear(UNITS, classes)),
        )
