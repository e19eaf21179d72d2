"""Fully connected networks.

Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017, section 3: "A simple multilayer-perceptron with 2-hidden layers with 200 units each
using ReLu activations (199,210 total parameters), which we refer to as the MNIST 2NN".
"""

from __future__ import annotations

import math

from torch import nn

from raysim.core.data import Model
from workloads.models.stages import Staged


class TwoNN(Model):
    """Two hidden layers of 200 units; `features` ends after the first, `hidden` after both."""

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for inputs of any shape, which it flattens."""
        return Staged(
            features=nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 200), nn.ReLU()),
            hidden=nn.Sequential(nn.Linear(200, 200), nn.ReLU()),
            head=nn.Sequential(nn.Linear(200, classes)),
        )
